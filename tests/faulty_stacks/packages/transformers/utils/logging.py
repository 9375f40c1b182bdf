"""How much is told."""


def set_verbosity_error() -> None:
    """Errors alone."""


def disable_progress_bar() -> None:
    """No bars."""
