"""The result of a run as text."""

from __future__ import annotations

from collections import Counter

from tests.chaos.rounds import Result


def table(result: Result) -> str:
    """For people."""
    rows = [
        ("seed", str(result.seed)),
        ("rounds", f"{result.rounds} in {result.seconds:.0f} s, {result.lives} lives of the server"),
        ("jobs by ending", _counts(result.endings)),
        ("errors by code", _counts(result.codes)),
        ("faults by kind", _counts(result.faults)),
        ("not made here", "; ".join(result.without) or "none"),
        ("refused", _counts(result.refusals)),
        ("endings untold", f"{result.untold} (the disk was full and the server killed before it had room)"),
        ("health", result.health),
        ("server memory", result.memory),
        ("longest stop", f"{result.longest_stop_s:.2f} s"),
        ("violations", str(len(result.violations))),
    ]
    return "\n".join(f"{name:<15} {text}" for name, text in rows)


def _counts(counts: Counter[str]) -> str:
    total = f"{sum(counts.values())}: " if counts else "none"
    return total + ", ".join(f"{name} {count}" for name, count in counts.most_common())
