"""A program that strikes a real server with random faults while clients submit, and proves what was promised.

`python -m tests.chaos --rounds 200`. Linux only. `docs/testing.md` tells what it does and what it checks.
"""
