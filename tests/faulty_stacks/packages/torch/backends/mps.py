"""Apple's GPU is not in this build."""


def is_built() -> bool:
    """Whether torch was built for it."""
    return False


def is_available() -> bool:
    """Whether it is there."""
    return False
