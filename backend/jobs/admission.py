"""What is checked before a generation job is accepted, and the complete request that is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from backend.common import errors
from backend.common.config.settings import Settings
from backend.common.types import Device
from backend.engines import engines
from backend.jobs.request import GenerateRequest, Spread, served_tasks
from backend.jobs.uploads import UploadStore
from backend.models import Catalogue
from backend.scheduling.device_resolution import Resolution
from backend.scheduling.option_support import check_honoured
from backend.scheduling.probing import ProbeService
from backend.scheduling.target_selection import nothing_behind, refusal_of
from backend.tasks.options import parse_options
from backend.tasks.options.inputs import INPUTS, check_inputs, check_sounds
from backend.tasks.options.songs import song_options
from backend.tasks.options.wished import wished
from backend.tasks.songs.model_kinds import SongKind


class AdmissionContext(Protocol):
    """What admission needs of the manager."""

    settings: Settings
    catalogue: Catalogue
    uploads: UploadStore
    probes: ProbeService

    def resolve(self, asked: str, task: str, engine: str | None) -> Resolution: ...
    def device(self, id_: str) -> Device: ...


def admit(manager: AdmissionContext, asked: GenerateRequest) -> dict[str, Any]:
    """The request with its defaults filled in.

    Raises Validation, UnsupportedParameter, UnknownModel, UnknownDevice, ModelNotDownloaded, ModelBroken, and under the
    policy `never` DeviceNotReady or Quarantined.
    """
    catalogue = manager.catalogue
    if asked.task is not None and asked.task not in served_tasks():
        raise errors.Validation(
            f"task: no engine of this version does {asked.task!r}.", f"Tasks: {', '.join(served_tasks())}."
        )
    entry = catalogue.resolve(asked.model) if asked.model else catalogue.default_for(asked.task or "text")
    task = asked.task or entry.task
    if task not in entry.tasks or task not in served_tasks():
        raise errors.Validation(
            f"The model {entry.id} does {' and '.join(entry.tasks)}, not {task!r}.",
            f"Leave task out, or choose a model for it; tasks of this version: {', '.join(served_tasks())}.",
            fields=["model"],
        )
    check_engine(asked.engine)
    song = entry.song if task == "music" else None
    taken = _of_song(song, asked) if song else _taken(task, asked, manager.settings.text.max_tokens)
    check_honoured(task, taken["options"], [asked.engine] if asked.engine else entry.engines)
    catalogue.path_of(entry)
    _keep_files(manager, asked)
    devices = list(dict.fromkeys(asked.devices or [asked.asked_device]))
    resolved = [manager.resolve(word, task, asked.engine) for word in devices]
    if asked.fallback == "never" and not manager.probes.probing:
        _refuse_unready(manager, resolved, devices, entry.id)
    return {
        **asked.model_dump(include={"fallback", "engine", "prompt", "messages"}),
        **({"inputs": asked.inputs} if asked.inputs else {}),
        "task": task,
        "model": entry.id,
        "device": asked.asked_device,
        **({"devices": devices, "spread": _spread(asked, task, taken["options"])} if asked.devices else {}),
        **taken,
    }


def _spread(asked: GenerateRequest, task: str, options: Mapping[str, Any]) -> Spread:
    """How several devices do it. Raises Validation where there is nothing to share out."""
    if "variations" not in options and asked.spread in ("parallel", "sequential"):
        raise errors.Validation(
            f"spread: a {task} job is one piece, of which devices cannot have shares.",
            'Leave spread out, or say "first_free": the device that is free first then does it.',
            fields=["spread"],
        )
    return asked.spread or ("parallel" if options.get("variations", 1) > 1 else "first_free")


def _taken(task: str, asked: GenerateRequest, max_tokens: int) -> dict[str, Any]:
    """What the task makes of prompt, messages, inputs and options. Raises Validation for what it does not take."""
    check_inputs(task, asked.inputs)
    if (asked.texts is not None) is not (task == "embeddings"):
        raise errors.Validation(
            f"texts: a job for embeddings takes texts, and no other does; this is one for {task}.",
            "Send texts to a model for embeddings, and a prompt or messages to any other.",
        )
    if task == "embeddings":
        if asked.prompt is not None or asked.messages is not None:
            raise errors.Validation("Embeddings are made of texts alone.", "Leave prompt and messages out.")
        return {"options": parse_options(task, asked.options, max_tokens), "texts": asked.texts}
    if task in INPUTS:
        if asked.prompt is not None or asked.messages is not None:
            raise errors.Validation(f"A {task} job takes inputs and no words.", "Leave prompt and messages out.")
        return {"options": parse_options(task, asked.options)}
    if task == "music":
        if asked.messages is not None:
            raise errors.Validation(
                "messages: a tune is not made from a conversation.", "Say what it shall be in options, or in prompt."
            )
        options, said = wished(asked.prompt, asked.options)
        return {
            "options": options,
            "understood": said.options if said else {},
            "ignored": said.ignored if said else [],
        }
    if asked.prompt is None and asked.messages is None and task != "lyrics":
        raise errors.Validation("The request has neither prompt nor messages.", "Send one of the two.")
    options = parse_options(task, asked.options, max_tokens)
    if options.get("raw") and asked.messages is not None:
        raise errors.Validation(
            "options.raw: messages need the chat template that raw leaves out.", "Send a prompt, or leave raw out."
        )
    return {"options": options}


def _of_song(kind: SongKind, asked: GenerateRequest) -> dict[str, Any]:
    """What a model that makes sound itself takes: a description, and words where it sings. Raises Validation."""
    check_sounds(kind.title, kind.sounds, asked.inputs)
    if asked.messages is not None or asked.texts is not None:
        raise errors.Validation(
            f"{kind.title} makes songs of a description, not of messages or texts.",
            "Send a prompt; words to sing go into options.lyrics.",
        )
    return {"options": song_options(kind, asked.prompt, asked.options)}


def _keep_files(manager: AdmissionContext, asked: GenerateRequest) -> None:
    """Begins the time of the files anew that the job names. Raises Validation for one that is not there."""
    for name, value in (asked.inputs or {}).items():
        if isinstance(value, str):
            try:
                manager.uploads.touch(value)
            except errors.Validation as error:
                where = f"inputs.{name}"
                raise errors.Validation(f"{where}: {error.detail}", error.remedy, fields=[where]) from None


def check_engine(name: str | None) -> None:
    """Raises Validation for a name that is no engine's."""
    if name is not None and name not in engines():
        raise errors.Validation(f"There is no engine {name!r}.", f"Engines: {', '.join(engines())}.")


def _refuse_unready(manager: AdmissionContext, resolved: list[Resolution], words: list[str], model: str) -> None:
    """Raises the first refusal where none of the devices could do it now."""
    refusals = [
        nothing_behind(word, one.reason) if one.resolved is None else refusal_of(manager.device(one.resolved), model)
        for one, word in zip(resolved, words, strict=True)
    ]
    if refusals[0] and all(refusals):
        raise refusals[0]
