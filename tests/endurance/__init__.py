"""Weeks of uptime in minutes: `python -m tests.endurance` runs the real server by a clock that the program moves."""
