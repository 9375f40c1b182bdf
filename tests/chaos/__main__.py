"""`python -m tests.chaos --rounds 200 [--seed N]`: print the faults and their results; exit code 1 on a violation."""

from __future__ import annotations

import argparse
import secrets
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos.rounds import Run
from tests.chaos.table import table
from tests.conftest import MODEL, STORE


def main() -> int:
    """Runs it; the folder with the server's log stays if something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 30), help="repeats the choice of faults")
    parser.add_argument("--model", type=Path, default=None, help="the larger GGUF (default: the one the tests use)")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    record = (folder / "rounds.log").open("w", buffering=1)

    def say(line: str) -> None:
        print(line, flush=True)
        record.write(line + "\n")

    say(f"seed {args.seed}, folder {folder}")
    with record:
        run = Run(folder, args.model or model_file(), args.seed, say)
        for number in (signal.SIGTERM, signal.SIGINT):  # ends after this round, with the table and no server left
            signal.signal(number, lambda *_: run.enough.set())
        result = run.run(args.rounds)
        say(table(result))
    if result.violations:
        print(f"The logs stay in {folder}; repeat with --seed {args.seed}.")
        return 1
    shutil.rmtree(folder)
    return 0


def model_file() -> Path:
    """The file that the tests fetch."""
    from backend.common.config.settings import load_settings
    from backend.models import Catalogue

    catalogue = Catalogue(load_settings({"storage.data_dir": str(STORE)}, {}))
    return catalogue.path_of(catalogue.resolve(MODEL))


if __name__ == "__main__":
    sys.exit(main())
