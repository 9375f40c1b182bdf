"""The request of an accepted job, typed: what admission returns, what is stored, and what executors read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, cast

from backend.common.engine_api import Message
from backend.common.types import Fallback, JsonObject
from backend.jobs.generate_request import Spread
from backend.tasks.music.prompt_parser import ParsedPrompt

RequestRow = JsonObject  # JSON, as the history stores it and the API shows it
Options = JsonObject  # validated by the task's schema, with all defaults filled in


@dataclass(frozen=True)
class JobRequest:
    """A generation request with its defaults filled in, or the request to load a model, which has no options.

    `device` and `devices` are names as the caller sent them: ids, aliases, or `auto`. `devices` is None where the
    caller named one device. `understood` is what a tune's prompt was parsed into, None for other tasks. `metadata` is
    kept with the job, without effect on it.
    """

    task: str
    model: str
    device: str = "auto"
    devices: tuple[str, ...] | None = None
    spread: Spread | None = None
    fallback: Fallback = "cpu"
    engine: str | None = None
    options: Options | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    texts: list[str] | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    understood: ParsedPrompt | None = None
    metadata: JsonObject | None = None
    gpu_layers: int | Literal["auto"] | None = None  # of a job that only loads; others have it in `options`

    @property
    def asked_layers(self) -> int | Literal["auto"] | None:
        """The layers on the card that the request names. None: as the model is loaded, or by the settings."""
        layers: int | Literal["auto"] | None = (self.options or {}).get("gpu_layers", self.gpu_layers)
        return layers

    @property
    def device_names(self) -> tuple[str, ...]:
        """The devices that the caller named, at least one."""
        return self.devices or (self.device,)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what a worker computes: equal requests have the same one. The seed is not part of it."""
        options = {name: value for name, value in (self.options or {}).items() if name != "seed"}
        content = [self.task, self.model, options, self.prompt, self.messages, self.texts, dict(self.inputs)]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()

    @property
    def variations(self) -> int:
        """How many variations of a tune or song to make. Default: 1."""
        return int((self.options or {}).get("variations", 1))

    @property
    def is_shared_out(self) -> bool:
        """Whether several devices make shares of the variations."""
        return self.spread in ("parallel", "sequential") and self.variations > 1

    def input_files(self) -> Iterable[str]:
        """Return the ids of the uploads that the job reads."""
        return (value for value in self.inputs.values() if isinstance(value, str))

    def to_row(self) -> RequestRow:
        """Return the JSON form. Members that the task does not have are left out; the order of keys is fixed."""
        several = {"devices": list(self.devices), "spread": self.spread} if self.devices else {}
        understood = self.understood
        return {
            "fallback": self.fallback,
            "engine": self.engine,
            "prompt": self.prompt,
            "messages": self.messages,
            **({"inputs": self.inputs} if self.inputs else {}),
            "task": self.task,
            "model": self.model,
            "device": self.device,
            **several,
            **({} if self.options is None else {"options": self.options}),
            **({} if self.texts is None else {"texts": self.texts}),
            **({} if self.metadata is None else {"metadata": self.metadata}),
            **({} if self.gpu_layers is None else {"gpu_layers": self.gpu_layers}),
            **({"understood": understood.options, "ignored": understood.ignored} if understood else {}),
        }

    @classmethod
    def from_row(cls, task: str, row: Mapping[str, Any]) -> JobRequest:
        """Return the request of a stored job of that task; what its version did not store gets its default."""
        devices: list[str] | None = row.get("devices")
        understood = ParsedPrompt(row.get("understood", {}), row.get("ignored", [])) if "understood" in row else None
        return cls(
            task=task,
            model=row.get("model") or "",
            device=row.get("device", "auto"),
            devices=tuple(devices) if devices else None,
            spread=cast("Spread | None", row.get("spread")),
            fallback=cast(Fallback, row.get("fallback", "cpu")),
            engine=row.get("engine"),
            options=row.get("options"),
            prompt=row.get("prompt"),
            messages=row.get("messages"),
            texts=row.get("texts"),
            inputs=row.get("inputs") or {},
            understood=understood,
            metadata=row.get("metadata"),
            gpu_layers=row.get("gpu_layers"),
        )
