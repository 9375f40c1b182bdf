"""The program that converts a model to another form: weights, tokenizer, comparison, then the move into place.

Its frames are in `wire_protocol.py`. An interrupted conversion keeps its files in `converted/.work`, and the next run
resumes it; the form gets into place complete or not at all.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from backend.child.convert import (
    FOLDER,
    FORMS,
    MANIFEST,
    OWN_RUNTIME,
    Form,
    openvino_config,
    place_of,
    reference_engine,
    source_bytes,
)
from backend.child.convert import (
    comparison as comparing,
)
from backend.child.convert.step_runner import run_step
from backend.child.download.workspace import lock_for, sync_folder
from backend.child.wire_protocol import WIRE_VERSION, Channel, Frame, WireError
from backend.common.errors import DiskFull, JobActive, ModelIncompatible, TouchstoneError
from backend.common.formats.gguf import read_header, tokenizer
from backend.common.formats.gguf.vocabulary import Vocabulary, read_vocabulary
from backend.common.formats.safetensors import open_checkpoint

_PROGRAM = Path(__file__).resolve().parents[1]
_STEPS = ("read", "build", "compare")


def main(channel: Channel) -> int:
    """Receive one order, `check` or `convert`, and run it."""
    channel.send({"op": "hello", "wire": WIRE_VERSION, "pid": os.getpid(), "python": sys.version.split()[0]})
    received = channel.receive()
    if received is None:
        return 0
    order = received[0]
    threading.Thread(target=_exit_with_parent, args=(channel,), daemon=True).start()
    try:
        vocabulary = check(Path(order["source"]))
        result: Mapping[str, object] = {}
        if order["op"] == "convert":
            result = _Conversion(channel, order, vocabulary).run()
        channel.send({"op": "done", **result})
    except TouchstoneError as error:
        channel.send({"op": "failed", "code": error.code, "detail": error.detail, "remedy": error.remedy})
    except OSError as error:
        remedy = "Free some space, or check the folder's permissions, then start again: the conversion resumes."
        code = "disk_full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "internal_error"
        channel.send({"op": "failed", "code": code, "detail": f"{error}", "remedy": remedy})
    return 0


def check(source: Path) -> Vocabulary | None:
    """Check that a source can be converted, before the long steps; return the vocabulary of a GGUF file, else None.

    Raises ModelBroken, ModelIncompatible.
    """
    if not source.is_dir():
        vocabulary = read_vocabulary(source)
        tokenizer.tokenizer_json(vocabulary)
        return vocabulary
    checkpoint = open_checkpoint(source)
    if not checkpoint.makes_text:
        kinds = ", ".join(map(str, checkpoint.config.get("architectures") or ["no architecture"]))
        raise ModelIncompatible(
            f"{source.name} is not a text generation model ({kinds}).", "Choose a text model (…ForCausalLM)."
        )
    if not (source / "tokenizer.json").is_file():
        raise ModelIncompatible(
            f"{source.name} has no tokenizer.json, which the form needs.",
            "Fetch the complete folder, or save its tokenizer with a newer transformers.",
        )
    return None


class _Conversion:
    def __init__(self, channel: Channel, order: Frame, vocabulary: Vocabulary | None) -> None:
        self._channel = channel
        self._vocabulary = vocabulary
        self._source = Path(order["source"])
        self._form: Form = FORMS[order["form"]]
        self._python = str(order["python"])
        self._options = dict(order["options"])
        self._target = place_of(Path(order["models_dir"]), order["model"], order["form"])
        self._model = str(order["model"])
        self._work = Path(order["models_dir"]) / FOLDER / ".work" / self._model

    def run(self) -> comparing.ConvertedModel:
        """Convert the model. Raises TouchstoneError."""
        self._work.mkdir(parents=True, exist_ok=True)
        lock = lock_for(self._work.parent, self._model)
        if not lock.acquire():
            raise JobActive("Another process is converting this model.", "Wait until it ends, then retry.")
        try:
            self._check_space()
            output = self._work / self._form.name
            if self._vocabulary is None:
                self._build(self._source, output)
                source = self._texts_of(self._source)
            else:
                if self._form.of_safetensors:
                    self._build(self._checkpoint(self._vocabulary), output)
                else:
                    self._graph(self._vocabulary, output)
                self._write_tokenizer(self._vocabulary, output)  # replaces the tokenizer that the builder writes
                self._step("compare")
                source = comparing.texts(reference_engine(self._source), str(self._source), self._options)
            return self._finish(output, comparing.compare(source, self._answers(output)))
        finally:
            lock.release()

    def _checkpoint(self, vocabulary: Vocabulary) -> Path:
        """Return the folder with the weights of a GGUF file at full precision."""
        checkpoint = self._work / "checkpoint"
        mark = checkpoint / MANIFEST
        if not mark.is_file() or json.loads(mark.read_text()) != {"source": self._stamp()}:
            self._step("read")
            shutil.rmtree(checkpoint, ignore_errors=True)
            self._run_library_step("read", str(self._source), str(checkpoint))
            mark.write_text(json.dumps({"source": self._stamp()}))
        self._write_tokenizer(vocabulary, checkpoint)
        return checkpoint

    def _write_tokenizer(self, vocabulary: Vocabulary, folder: Path) -> None:
        tokenizer.write(vocabulary, folder, read_header(self._source).context_length)

    def _build(self, checkpoint: Path, output: Path) -> None:
        self._step("build")
        shutil.rmtree(output, ignore_errors=True)
        options = [f"{name}={value}" for name, value in self._form.options.items()]
        self._run_library_step("build", str(checkpoint), str(output), str(self._form.precision), *options)

    def _graph(self, vocabulary: Vocabulary, output: Path) -> None:
        self._step("build")
        shutil.rmtree(output, ignore_errors=True)
        self._run_library_step("graph", str(self._source), str(output))
        openvino_config.write_config(output, read_header(self._source), vocabulary)

    def _answers(self, output: Path) -> list[comparing.Answer]:
        """Return the texts of the form from its engine, in this environment or in the form's."""
        if self._form.runtime == OWN_RUNTIME:
            return comparing.texts(self._form.engine, str(output), self._options)
        texts_file = self._work / "texts.json"
        self._run_library_step("answers", self._form.engine, str(output), json.dumps(self._options), str(texts_file))
        texts: list[comparing.Answer] = json.loads(texts_file.read_text(encoding="utf-8"))
        return texts

    def _texts_of(self, checkpoint: Path) -> list[comparing.Answer]:
        """Return the texts of the source from transformers."""
        self._step("compare")
        prompts_file, texts_file = self._work / "prompts.json", self._work / "texts.json"
        prompts_file.write_text(json.dumps({"prompts": comparing.PROMPTS, "tokens": comparing.TOKENS}))
        self._run_library_step("texts", str(checkpoint), str(prompts_file), str(texts_file))
        texts: list[comparing.Answer] = json.loads(texts_file.read_text(encoding="utf-8"))
        return texts

    def _run_library_step(self, *arguments: str) -> None:
        env = {**os.environ, "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        command = [self._python, "-I", str(_PROGRAM), "library_steps", *arguments]
        run_step(command, f"the step '{arguments[0]}' failed", env)

    def _finish(self, output: Path, comparison: comparing.Comparison) -> comparing.ConvertedModel:
        size = sum(file.stat().st_size for file in output.iterdir())
        manifest = {"source": self._stamp(), "comparison": comparison, "at": time.time(), "bytes": size}
        (output / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False), encoding="utf-8")
        self._target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self._target, ignore_errors=True)
        if self._target.exists():  # Windows keeps files that a worker has open
            raise JobActive(f"{self._target} is in use.", "Unload the model, then start again: the conversion resumes.")
        output.replace(self._target)
        sync_folder(self._target.parent)
        shutil.rmtree(self._work, ignore_errors=True)
        return {"path": str(self._target), "bytes": size, "comparison": comparison}

    def _check_space(self) -> None:
        needed, free = self._form.room * source_bytes(self._source), shutil.disk_usage(self._work).free
        if free < needed:
            space = f"{needed / 1e6:.0f} MB of disk space; {self._work} has {free / 1e6:.0f} MB free"
            raise DiskFull(
                f"The conversion needs about {space}.",
                "Free some space, or set TOUCHSTONE_DATA_DIR to a folder on another disk.",
            )

    def _stamp(self) -> dict[str, object]:
        return {"name": self._source.name, "bytes": source_bytes(self._source)}

    def _step(self, name: str) -> None:
        progress = {"phase": name, "done": _STEPS.index(name), "total": len(_STEPS), "unit": "steps"}
        self._channel.send({"op": "progress", **progress})


def _exit_with_parent(channel: Channel) -> None:
    try:
        while channel.receive():
            pass
    except (OSError, WireError):
        pass
    os._exit(1)  # the parent is gone; the steps die with this process
