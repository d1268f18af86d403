"""The worker: it owns transactions, threads and signals."""
