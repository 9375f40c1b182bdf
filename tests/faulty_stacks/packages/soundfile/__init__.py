"""A stand-in for soundfile: engines only read its version to see that it is installed."""

__all__: list[str] = []
__version__ = "0.13.1"
