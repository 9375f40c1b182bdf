"""What goes wrong in this torch: `plan.json` beside this file, written by whoever made the environment.

`at {point: [action, argument]}` strikes when a point is reached: `raise [type, text]`, `signal NAME`, `abort TEXT`,
`exit CODE`, `hang SECONDS`, `slow SECONDS`, `print TEXT`, `write TEXT` (to the file descriptor), `complain TEXT` (to
stderr). A point may name a data type, as `matmul:bfloat16`. `spoil {op: [how, argument, dtype or null, when]}` makes
results wrong; `when` is optional: the least `rows`, `columns`, `bytes` or `inner` size of the result, `is_one_row` (1),
or `after` how many calls.
`place` is a lie about where data lies. `arithmetic` is how a healthy card differs: `tf32`, `flushes`, `splits`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

PLAN: dict[str, Any] = json.loads(Path(__file__).with_name("plan.json").read_text(encoding="utf-8"))


# The process that this is: `list`, `list-visible` or `prove` of the probe, `run` of a worker.
ROLE = next((word for word in sys.argv[1:3][::-1] if word in ("list", "list-visible", "prove", "run")), "")


def reach(point: str) -> None:
    """Lets happen what is planned for this point."""
    for action, argument in PLAN.get("at", {}).get(point, []):
        act(action, argument)


def act(action: str, argument: Any) -> None:
    """One misfortune."""
    if action == "raise":
        raise kinds()[argument[0]](argument[1])
    if action == "signal":
        os.kill(os.getpid(), getattr(signal, argument))
        time.sleep(60)
    elif action == "abort":
        print(argument, file=sys.stderr, flush=True)
        os.abort()
    elif action == "exit":
        sys.exit(argument)
    elif action in ("hang", "slow"):
        time.sleep(argument)
    elif action == "print":
        print(argument, flush=True)
    elif action == "write":
        os.write(1, argument.encode("latin-1"))
    elif action == "warn":
        warnings.warn(argument, stacklevel=3)
    else:
        print(argument, file=sys.stderr, flush=True)


def kinds() -> dict[str, type[BaseException]]:
    """The exceptions that a plan may name."""
    known: list[type[BaseException]] = [AssertionError, ImportError, MemoryError, ModuleNotFoundError, OSError]
    known += [OutOfMemoryError, PermissionError, RuntimeError, SyntaxError, ValueError]
    return {kind.__name__: kind for kind in known}


class OutOfMemoryError(RuntimeError):
    """As torch.OutOfMemoryError."""
