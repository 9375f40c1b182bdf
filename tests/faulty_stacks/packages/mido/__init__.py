"""A stand-in for mido: engines only import it to see that it is installed."""

__all__: list[str] = []
