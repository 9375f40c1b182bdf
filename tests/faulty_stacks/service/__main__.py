"""Serve with scripted cards: `python -m tests.faulty_stacks.service CONFIG CARDS_PYTHON`.

Children of the interpreter CARDS_PYTHON are played by `scripted_cards.py`; all others are real.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from backend.child.handle import spawn
from backend.common.config.settings import load_settings
from backend.server.process import serve

SCRIPT = Path(__file__).with_name("scripted_cards.py")
SCRIPTED = ("probe", "run")


def main(config: str, cards_python: str) -> None:
    """Serve until SIGTERM; the first line has the address."""

    def play(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        if python != cards_python or arguments[0] not in SCRIPTED:
            return spawn(python, arguments)
        return subprocess.Popen(
            [sys.executable, str(SCRIPT), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    settings = load_settings({"config": config, "server.port": 0}, {})
    asyncio.run(serve(settings, lambda line: print(line, flush=True), spawn=play))


if __name__ == "__main__":
    main(*sys.argv[1:])
