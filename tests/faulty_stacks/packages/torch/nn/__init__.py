"""Only what is called by name."""

from . import functional

__all__ = ["functional"]
