"""Touchstone: local generation that proves which device was used."""

__version__ = "0.2.0"
