"""How long the tokens of a text wait for those that follow, so that they go out in handfuls.

Every handful wakes the server and its followers, which on a machine whose cores all compute delays the next step of all
texts: two threads that share a step both wait for the one that was pushed aside.
"""

from __future__ import annotations

_ALONE_S, _LONGEST_S = 0.05, 0.2
_TEXTS = 2  # with more of them the wait grows, since each brings handfuls of its own


def flush_interval_s(texts: int) -> float:
    """Seconds, while so many texts are written at once."""
    return min(_LONGEST_S, _ALONE_S * max(1.0, texts / _TEXTS))
