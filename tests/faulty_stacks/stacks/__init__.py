"""Stacks with an entry point of their own, by topic: each module defines `STACKS`."""

from tests.faulty_stacks.stack import Stack, collect

STACKS: list[Stack] = collect(__name__, __path__, "STACKS")
