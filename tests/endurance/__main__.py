"""`python -m tests.endurance [--jobs 10000] [--hours 24] [--seed N]`: print each hour; exit code 1 on a failure."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.endurance.run import Endurance


def main() -> int:
    """Runs it."""
    parser = argparse.ArgumentParser(prog="python -m tests.endurance", description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="endurance-") as folder:
        result = Endurance(Path(folder), args.jobs, args.hours, args.seed, lambda line: print(line, flush=True)).run()
    for name, counts in (("endings kept", result.endings), ("codes", result.codes), ("faults", result.faults)):
        print(f"{name}: " + (", ".join(f"{key} {count}" for key, count in counts.most_common()) or "none"))
    print(f"{result.seconds:.0f} s; {len(result.broken)} promises broken")
    return 1 if result.broken else 0


if __name__ == "__main__":
    sys.exit(main())
