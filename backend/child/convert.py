"""The program that makes another form of a model: environment, weights, tokenizer, comparison, then the name.

Parent → child: `convert {source, model, form, models_dir, home, python}`. Child → parent: `hello`, `progress
{phase, done, total, unit}`, at last `done {path, bytes, comparison}` or `failed {code, detail, remedy}`.
What was made stays in `converted/.work` when it breaks off, and the next run goes on with it; the form itself gets its
place whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from backend.child.wire import WIRE_VERSION, Channel, Header, WireError
from backend.child.workspace import lock_for, sync_folder
from backend.convert import (
    ENVIRONMENT_BYTES,
    FOLDER,
    FORMS,
    MANIFEST,
    Form,
    comparing,
    environment,
    place_of,
    work_bytes,
)
from backend.errors import DiskFull, JobActive, TouchstoneError
from backend.gguf import read_header, tokenizer
from backend.gguf.vocabulary import read_vocabulary

_PROGRAM = Path(__file__).resolve().parent
_STEPS = ("read", "build", "compare")


def main(channel: Channel) -> int:
    """Serves the one order."""
    channel.send({"op": "hello", "wire": WIRE_VERSION, "pid": os.getpid(), "python": sys.version.split()[0]})
    received = channel.receive()
    if received is None:
        return 0
    threading.Thread(target=_end_with, args=(channel,), daemon=True).start()
    try:
        channel.send({"op": "done", **_Conversion(channel, received[0]).run()})
    except TouchstoneError as error:
        channel.send({"op": "failed", "code": error.code, "detail": error.detail, "remedy": error.remedy})
    except OSError as error:
        remedy = "Free some space, or check the folder's permissions, then start again: it goes on."
        code = "disk_full" if error.errno == 28 else "internal_error"
        channel.send({"op": "failed", "code": code, "detail": f"{error}", "remedy": remedy})
    return 0


class _Conversion:
    def __init__(self, channel: Channel, order: Header) -> None:
        self._channel = channel
        self._source = Path(order["source"])
        self._form: Form = FORMS[order["form"]]
        self._home = Path(order["home"])
        self._python = order.get("python")
        self._target = place_of(Path(order["models_dir"]), order["model"], order["form"])
        self._work = Path(order["models_dir"]) / FOLDER / ".work" / order["model"]
        self._model = str(order["model"])

    def run(self) -> dict[str, Any]:
        """Makes the form. Raises TouchstoneError."""
        vocabulary = read_vocabulary(self._source)
        tokenizer.tokenizer_json(vocabulary)  # refuses now what could not be converted after a long while
        self._work.mkdir(parents=True, exist_ok=True)
        lock = lock_for(self._work.parent, self._model)
        if not lock.acquire():
            raise JobActive("Another program is converting this model.", "Wait for it.")
        try:
            self._check_space()
            python = self._python or str(environment.make(self._home, self._tell))
            checkpoint, output = self._work / "checkpoint", self._work / self._form.name
            self._checkpoint(python, checkpoint)
            header = read_header(self._source)
            tokenizer.write(vocabulary, checkpoint, header.context_length)
            self._build(python, checkpoint, output)
            tokenizer.write(vocabulary, output, header.context_length)  # the builder saves its own reading of it
            self._step("compare")
            source = comparing.texts("llama.cpp", str(self._source))
            comparison = comparing.compared(source, comparing.texts(self._form.engine, str(output)))
            return self._finish(output, comparison)
        finally:
            lock.release()

    def _checkpoint(self, python: str, checkpoint: Path) -> None:
        stamp = {"source": self._stamp()}
        mark = checkpoint / MANIFEST
        if mark.is_file() and json.loads(mark.read_text()) == stamp:
            return
        self._step("read")
        shutil.rmtree(checkpoint, ignore_errors=True)
        self._weights(python, "read", str(self._source), str(checkpoint))
        mark.write_text(json.dumps(stamp))

    def _build(self, python: str, checkpoint: Path, output: Path) -> None:
        self._step("build")
        shutil.rmtree(output, ignore_errors=True)
        options = [f"{name}={value}" for name, value in self._form.options.items()]
        self._weights(python, "build", str(checkpoint), str(output), self._form.precision, *options)

    def _weights(self, python: str, *words: str) -> None:
        env = {**os.environ, "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        environment.call([python, "-I", str(_PROGRAM), "weights", *words], f"the step '{words[0]}' failed", env)

    def _finish(self, output: Path, comparison: dict[str, Any]) -> dict[str, Any]:
        size = sum(file.stat().st_size for file in output.iterdir())
        made = {"source": self._stamp(), "comparison": comparison, "at": time.time(), "bytes": size}
        (output / MANIFEST).write_text(json.dumps(made, indent=1, ensure_ascii=False), encoding="utf-8")
        self._target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self._target, ignore_errors=True)
        if self._target.exists():  # Windows keeps files that a worker has open
            raise JobActive(f"{self._target} is in use.", "Unload the model, then start again: it goes on.")
        output.replace(self._target)
        sync_folder(self._target.parent)
        shutil.rmtree(self._work, ignore_errors=True)
        return {"path": str(self._target), "bytes": size, "comparison": comparison}

    def _check_space(self) -> None:
        needed = work_bytes(self._source.stat().st_size)
        if self._python is None and not environment.ready(self._home):
            needed += ENVIRONMENT_BYTES
        free = shutil.disk_usage(self._work).free
        if free < needed:
            raise DiskFull(
                f"Converting needs about {needed / 1e6:.0f} MB for a while, and {self._work} has {free / 1e6:.0f} MB "
                "free.",
                "Free some space, or set TOUCHSTONE_DATA_DIR to a folder on another disk.",
            )

    def _stamp(self) -> dict[str, Any]:
        facts = self._source.stat()
        return {"name": self._source.name, "bytes": facts.st_size}

    def _step(self, name: str) -> None:
        self._tell(name, _STEPS.index(name), len(_STEPS), "steps")

    def _tell(self, phase: str, done: int, total: int | None, unit: str) -> None:
        self._channel.send({"op": "progress", "phase": phase, "done": done, "total": total, "unit": unit})


def _end_with(channel: Channel) -> None:
    try:
        while channel.receive():
            pass
    except (OSError, WireError):
        pass
    os._exit(1)  # the parent is gone; what was started ends with us
