"""Touchstone: local text and music generation that tells the truth about devices."""

__version__ = "0.1.0"
