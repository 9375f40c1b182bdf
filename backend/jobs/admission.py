"""Admission: the checks before a generation job is accepted, and the typed request that comes out of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from backend.common import errors
from backend.common.config.settings import Settings
from backend.common.errors import TouchstoneError
from backend.common.types import Device
from backend.engines import engines
from backend.jobs.generate_request import GenerateRequest, Spread, served_tasks
from backend.jobs.job_request import JobRequest, Options
from backend.jobs.uploads import UploadStore
from backend.models import Catalogue, Entry
from backend.scheduling.device_resolution import Resolution, apply_default, check_device_name
from backend.scheduling.option_support import check_honoured
from backend.scheduling.probing import ProbeService
from backend.scheduling.target_selection import no_ready_device_error, unusable_error
from backend.tasks.music.prompt_parser import ParsedPrompt
from backend.tasks.options import parse_options
from backend.tasks.options.inputs import INPUTS, check_audio_inputs, check_inputs
from backend.tasks.options.music_prompt import apply_prompt
from backend.tasks.options.songs import song_options
from backend.tasks.songs.model_kinds import SongKind


class AdmissionContext(Protocol):
    """The members of the manager that admission uses."""

    settings: Settings
    catalogue: Catalogue
    uploads: UploadStore
    probes: ProbeService

    def resolve(self, asked: str, task: str, engine: str | None) -> Resolution: ...
    def device(self, id_: str) -> Device: ...
    def known_devices(self) -> list[Device]: ...


@dataclass(frozen=True)
class _ModelState:
    """A model as its files are now. `song` is set where it makes sound itself; `problem` where it cannot be used."""

    entry: Entry
    song: SongKind | None
    problem: TouchstoneError | None


@dataclass(frozen=True)
class _Content:
    """The part of a request that depends on the task."""

    options: Options
    texts: list[str] | None = None
    understood: ParsedPrompt | None = None


async def admit(context: AdmissionContext, request: GenerateRequest) -> tuple[JobRequest, Entry]:
    """Check a request. Return it with its defaults filled in, and the catalogue entry of its model.

    The model's folder and files are read in a thread, once. The names of devices are checked here; which device `auto`
    or an alias means is decided when the job starts, except under the policy `never`.
    Raises Validation, UnsupportedParameter, UnknownModel, UnknownDevice, ModelNotDownloaded, ModelBroken, and under the
    policy `never` DeviceNotReady or Quarantined.
    """
    if request.task is not None and request.task not in served_tasks():
        raise errors.Validation(
            f"task: no engine of this version does {request.task!r}.", f"Tasks: {', '.join(served_tasks())}."
        )
    model = await asyncio.to_thread(_look_up_model, context.catalogue, request)
    entry = model.entry
    task = request.task or entry.task
    if task not in entry.tasks or task not in served_tasks():
        raise errors.Validation(
            f"The model {entry.id} does {' and '.join(entry.tasks)}, not {task!r}.",
            f"Leave task out, or choose a model for it; tasks of this version: {', '.join(served_tasks())}.",
            fields=["model"],
        )
    check_engine(request.engine)
    if model.song:
        content = _parse_song(model.song, request)
    else:
        if request.inputs or task in INPUTS:
            check_inputs(task, request.inputs)
        content = _parse_content(task, request, context.settings.text.max_tokens)
    check_honoured(task, content.options, [request.engine] if request.engine else entry.engines)
    if model.problem:
        raise model.problem
    if request.inputs:
        await asyncio.to_thread(_touch_uploads, context.uploads, request)
    names = tuple(dict.fromkeys(request.devices or [request.asked_device]))
    _check_devices(context, request, names, task, entry.id)
    return JobRequest(
        task=task,
        model=entry.id,
        device=request.asked_device,
        devices=names if request.devices else None,
        spread=_choose_spread(request, task, content.options) if request.devices else None,
        fallback=request.fallback,
        engine=request.engine,
        options=content.options,
        prompt=request.prompt,
        messages=None if request.messages is None else [message.to_typed() for message in request.messages],
        texts=content.texts,
        inputs=request.inputs or {},
        understood=content.understood,
        metadata=request.metadata,
    ), entry


def _look_up_model(catalogue: Catalogue, request: GenerateRequest) -> _ModelState:
    """Return the model that the request names, or the default one of its task. Raises UnknownModel, Validation."""
    task = request.task or ("text" if request.messages else None)
    entry = catalogue.resolve(request.model, task=task) if request.model else catalogue.default_for(task or "text")
    song = entry.song if (request.task or entry.task) == "music" else None
    try:
        catalogue.path_of(entry)
    except TouchstoneError as problem:
        return _ModelState(entry, song, problem)
    return _ModelState(entry, song, None)


def _choose_spread(request: GenerateRequest, task: str, options: Options) -> Spread:
    """Return how several devices do the job. Raises Validation for a task without variations."""
    if "variations" not in options and request.spread in ("parallel", "sequential"):
        raise errors.Validation(
            f"spread: a {task} job is a single piece of work; devices cannot take shares of it.",
            'Leave spread out, or send "first_free": the first free device then runs the job.',
            fields=["spread"],
        )
    return request.spread or ("parallel" if options.get("variations", 1) > 1 else "first_free")


def _parse_content(task: str, request: GenerateRequest, max_tokens: int) -> _Content:
    """Parse prompt, messages and options by the rules of the task. Raises Validation.

    `max_tokens` is the default length of a text.
    """
    if (request.texts is not None) is not (task == "embeddings"):
        raise errors.Validation(
            f"texts: only a job for embeddings takes texts; this is a job for {task}.",
            "Send texts to a model for embeddings, and a prompt or messages to any other.",
        )
    if task == "embeddings":
        if request.prompt is not None or request.messages is not None:
            raise errors.Validation("Embeddings are made of texts only.", "Leave prompt and messages out.")
        return _Content(parse_options(task, request.options, max_tokens), texts=request.texts)
    if task in INPUTS:
        if request.prompt is not None or request.messages is not None:
            raise errors.Validation(
                f"A {task} job takes inputs, no prompt and no messages.", "Leave prompt and messages out."
            )
        return _Content(parse_options(task, request.options))
    if task == "music":
        if request.messages is not None:
            raise errors.Validation(
                "messages: a tune is not made from a conversation.", "Describe it in options, or in prompt."
            )
        options, understood = apply_prompt(request.prompt, request.options)
        return _Content(options, understood=understood or ParsedPrompt({}, []))
    options = parse_options(task, request.options, max_tokens)
    _check_prompt(task, request, options)
    return _Content(options)


def _check_prompt(task: str, request: GenerateRequest, options: Options) -> None:
    """Check that a text has one prompt: a text, messages or token ids. Raises Validation."""
    has_text = request.prompt is not None or request.messages is not None
    has_tokens = options.get("prompt_tokens") is not None
    if has_text and has_tokens:
        raise errors.Validation(
            "options.prompt_tokens: the request also has a prompt or messages.",
            "Send one of them.",
            fields=["options.prompt_tokens"],
        )
    if not has_text and not has_tokens and task != "lyrics":
        raise errors.Validation("The request has neither prompt nor messages.", "Send one of the two.")
    if options.get("raw") and request.messages is not None:
        raise errors.Validation(
            "options.raw: messages need the chat template that raw leaves out.", "Send a prompt, or leave raw out."
        )


def _parse_song(kind: SongKind, request: GenerateRequest) -> _Content:
    """Parse the request to a model that makes sound itself: a description, and lyrics if it sings.

    Raises Validation.
    """
    check_audio_inputs(kind.title, kind.sounds, request.inputs)
    if request.messages is not None or request.texts is not None:
        raise errors.Validation(
            f"{kind.title} makes songs of a description, not of messages or texts.",
            "Send a prompt; words to sing go into options.lyrics.",
        )
    return _Content(song_options(kind, request.prompt, request.options))


def _touch_uploads(uploads: UploadStore, request: GenerateRequest) -> None:
    """Restart the expiry of the files that the job names. Raises Validation for a file that does not exist."""
    for name, value in (request.inputs or {}).items():
        if isinstance(value, str):
            try:
                uploads.touch(value)
            except errors.Validation as error:
                where = f"inputs.{name}"
                raise errors.Validation(f"{where}: {error.detail}", error.remedy, fields=[where]) from None


def check_engine(name: str | None) -> None:
    """Raises Validation for a name that is not an engine's; None is any engine."""
    if name is not None and name not in engines():
        raise errors.Validation(f"Unknown engine {name!r}.", f"Engines: {', '.join(engines())}.")


def _check_devices(
    context: AdmissionContext, request: GenerateRequest, names: Sequence[str], task: str, model: str
) -> None:
    """Check the names of devices, and under the policy `never` that one of them can run the job now.

    Raises UnknownDevice, Validation, DeviceNotReady, Quarantined.
    """
    if request.fallback != "never" or context.probes.probing:  # a probe may still make a device ready
        for name in names:
            default = apply_default(name, context.settings.device)
            check_device_name(default, task, request.engine, lambda: [device.id for device in context.known_devices()])
        return
    resolutions = [context.resolve(name, task, request.engine) for name in names]
    refusals = [
        no_ready_device_error(name, resolution.reason)
        if resolution.resolved is None
        else unusable_error(context.device(resolution.resolved), model)
        for resolution, name in zip(resolutions, names, strict=True)
    ]
    if refusals[0] and all(refusals):
        raise refusals[0]
