"""Stacks in interpreters of their own, by topic: each module defines `CASES`, what fails and what the list reports."""

from tests.faulty_stacks.cases.case import SECRET, Case, card
from tests.faulty_stacks.stack import collect

__all__ = ["CASES", "SECRET", "Case", "card"]
CASES: list[Case] = collect(__name__, __path__, "CASES")
