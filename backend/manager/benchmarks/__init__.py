"""Benchmarks of this machine's devices with its models: run on request and when idle, kept for `auto`.

`bench devices` and `POST /api/bench` request them, and so does the service itself when idle (`idle_trigger.py`).
"""
