"""Touchstone: local generation that tells the truth about devices."""

__version__ = "0.1.0"
