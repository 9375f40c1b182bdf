"""The matrix of faults: by mechanism, what fails in a stack, and what the device list must report."""

from tests.faulty_stacks.cases import builds, cards, computing, ending, listing, loading, providers
from tests.faulty_stacks.cases.case import SECRET, Case, card

__all__ = ["CASES", "SECRET", "Case", "card"]
CASES = [*computing.CASES, *ending.CASES, *loading.CASES, *builds.CASES, *listing.CASES, *cards.CASES, *providers.CASES]
