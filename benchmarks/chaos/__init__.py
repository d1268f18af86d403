"""The chaos run: what an app of many processes loses or does twice while everything around it breaks.

    python -m benchmarks.chaos --minutes 1 --seed 7

`tables` and `app` are the app under test; `program`, `roles` and `enqueuing` are its processes; `crew` starts and
replaces them; `faults` and `people` disturb them; `judge` says what is lost or doubled; `run` is the order of events.
"""
