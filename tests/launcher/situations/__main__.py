"""Prints the table of docs/starts.md."""

import sys

from tests.launcher.situations import table

sys.stdout.write(table())
