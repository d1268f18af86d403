"""Verbs on a Session. They never commit, log, sleep or read a clock."""
