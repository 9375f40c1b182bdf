"""Apple's GPU is not in this build."""

from .._plan import reach


def is_built() -> bool:
    """Whether torch was built for it."""
    reach("mps.is_built")
    return False


def is_available() -> bool:
    """Whether it is there."""
    return False
