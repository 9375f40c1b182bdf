"""Weeks of uptime in minutes: `python -m tests.endurance` runs the real server with a simulated clock."""
