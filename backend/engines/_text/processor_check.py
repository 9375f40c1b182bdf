"""The check of a text model on another device than the processor: made at the first load, then remembered.

It is remembered for the model's files, the device, its driver, the versions of the libraries, and the device's options.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol

from backend.common.errors import ModelIncompatible, TouchstoneError
from backend.common.system.resources import memory_free_bytes
from backend.common.timestamps import utc_now
from backend.common.types import Placement
from backend.devices import split_id
from backend.engines import LoadRequest
from backend.engines._text import agreement
from backend.engines._text.agreement import ForcedModel, Reading

log = logging.getLogger(__name__)
_REVISION = 1  # of the check
_FREE_SHARE = 0.8  # of the free memory that a copy may take


class IncrementalModel(ForcedModel, Protocol):
    """A batch model that can compare incremental decoding with a full forward pass."""

    def verify_incremental(self, ids: list[int]) -> None:
        """Raises ModelIncompatible if they differ."""
        ...


class ProcessorCheck:
    """The check of one load. `evidence` is its result in a sentence, empty before it is known."""

    def __init__(
        self, engine: str, request: LoadRequest, name: str, versions: Mapping[str, str], copy_bytes: int
    ) -> None:
        """`copy_bytes`: the memory that a copy of the model takes on the processor."""
        self._request, self._name, self._copy_bytes = request, name, copy_bytes
        self._trusted: Reading | None = None
        self._omitted = ""
        self._is_processor = split_id(request.device)[0] == "cpu"
        self._file = _verdict_file(engine, request, versions)
        self.evidence = "" if self._is_processor else self._remembered()

    @property
    def is_due(self) -> bool:
        """Whether the model has to be checked in this load."""
        return not self._is_processor and not self.evidence

    @property
    def context_tokens(self) -> int:
        """The context that a copy needs."""
        return min(self._request.context_tokens, agreement.LONG_TOKENS + agreement.STEPS + 1)

    def add_to(self, placement: Placement) -> Placement:
        """Return the placement with the result as part of its evidence."""
        if not self.evidence:
            return placement
        return replace(placement, evidence=f"{placement.evidence.rstrip('.')}. {self.evidence}")

    def read_copy(self, make: Callable[[], Reading]) -> None:
        """Compute the trusted side with a copy on the processor, unless it is too large. `make` loads and reads it."""
        free = memory_free_bytes()
        needs = f"a copy there needs about {_gigabytes(self._copy_bytes)}"
        if self._copy_bytes > self._request.check_bytes:
            self._omitted = f"{needs}, more than text.check_memory ({_gigabytes(self._request.check_bytes)})"
        elif free is not None and self._copy_bytes > _FREE_SHARE * free:
            self._omitted = f"{needs}, and {_gigabytes(free)} are available"
        else:
            try:
                self._trusted = make()
            except Exception as error:  # noqa: BLE001 (the device may run what the processor cannot)
                detail = error.detail if isinstance(error, TouchstoneError) else f"{type(error).__name__}: {error}"
                self._omitted = f"a copy there failed: {detail.rstrip('.')[:200]}"
                log.warning("no comparison with the processor", extra={"model": self._name, "cause": detail})

    def read_copy_model(self, make: Callable[[], ForcedModel], tokens: Sequence[int]) -> None:
        """Do the same with a copy that is a batch model of one row with `context_tokens`."""
        budget_s = agreement.BUDGET_S
        self.read_copy(lambda: agreement.read(make(), tokens, self.context_tokens, 1, budget_s, repeats=False))

    def judge_model(self, model: ForcedModel, tokens: Sequence[int]) -> None:
        """Read the model on the device and judge it. Raises DeviceWrong."""
        self.judge(agreement.read(model, tokens, self.context_tokens, self._request.slots))

    def verify(self, model: IncrementalModel, tokens: Sequence[int]) -> None:
        """Verify that incremental decoding works, and judge the model if that is due.

        Raises ModelIncompatible, or DeviceWrong if the device is the cause.
        """
        try:
            model.verify_incremental([*tokens])
        except ModelIncompatible:
            if self.is_due:
                self.judge_model(model, tokens)
            raise
        if self.is_due:
            self.judge_model(model, tokens)

    def judge(self, reading: Reading) -> None:
        """Compare the device's reading with itself and with the trusted one, and remember it. Raises DeviceWrong."""
        device = self._request.device
        inner = agreement.check_consistency(reading, self._name, device)
        if self._trusted is None:
            self.give_up(self._omitted)
            self.evidence += f" Prefill and decoding agree within {inner.difference:.2g}."
            return
        found = agreement.compare(self._trusted, reading, self._name, device)
        long = "" if self._trusted.long else " The long prompt was left out: the processor is too slow for it."
        self.evidence = (
            f"Over {found.steps} tokens its log probabilities were within {found.difference:.2g} of the processor's "
            f"(mean {found.mean:.2g}).{long}"
        )
        self._remember()

    def give_up(self, reason: str) -> None:
        """Let the model run without a comparison. `reason` is part of the evidence."""
        self.evidence = f"Its next-token probabilities were not compared with the processor's: {reason}."

    def _remembered(self) -> str:
        try:
            verdict = json.loads(self._file.read_text(encoding="utf-8")) if self._file else {}
        except (OSError, ValueError):
            return ""
        if not isinstance(verdict, dict):
            return ""
        evidence, at = verdict.get("evidence"), verdict.get("at")
        return f"{evidence} Checked at {at}." if isinstance(evidence, str) and isinstance(at, str) else ""

    def _remember(self) -> None:
        if not self._file:
            return
        with contextlib.suppress(OSError):  # without it the next load checks again
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = self._file.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps({"evidence": self.evidence, "at": utc_now()}), encoding="utf-8")
            new.replace(self._file)


def _verdict_file(engine: str, request: LoadRequest, versions: Mapping[str, str]) -> Path | None:
    if not request.verdict_dir:
        return None
    device = asdict(request.detected_device) if request.detected_device else {}
    identity = {name: value for name, value in device.items() if name != "memory_free_bytes"}
    facts = [
        *(_REVISION, engine, request.device, identity, request.driver, dict(versions), sys.version),
        *(request.provider_options, _stamps(Path(request.model_path))),
    ]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:32]
    return Path(request.verdict_dir) / f"{key}.json"


def _stamps(path: Path) -> list[tuple[str, int, int]]:
    """Return name, size and time of each file of a model."""
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    facts = [(str(file), file.stat()) for file in files]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in facts]


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2g} GB"
