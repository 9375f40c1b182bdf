"""Apple's GPU is not in this build."""

from . import mps

__all__ = ["mps"]
