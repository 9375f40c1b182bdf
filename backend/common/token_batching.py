"""The interval over which generated tokens are coalesced into one message.

Each message wakes the server and its clients. On a machine whose cores all compute, that delays the next decode step
of all sequences: the threads of a step wait for the one that was preempted. A child process and an engine both use it.
"""

from __future__ import annotations

_SHORTEST_S, _LONGEST_S = 0.05, 0.2
_SEQUENCES = 2  # with more concurrent sequences the interval grows, because each sends its own messages


def flush_interval_s(texts: int) -> float:
    """Return the interval in seconds while `texts` sequences are generated concurrently."""
    return min(_LONGEST_S, _SHORTEST_S * max(1.0, texts / _SEQUENCES))
