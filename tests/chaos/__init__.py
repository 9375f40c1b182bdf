"""Random faults on a real server while clients submit jobs, with checks of the guarantees.

`python -m tests.chaos --rounds 200`. Linux only. `docs/testing.md` tells what it does and what it checks.
"""
