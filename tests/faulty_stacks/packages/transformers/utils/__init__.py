"""Only what is called."""

from . import logging

__all__ = ["logging"]
