"""Kinds of song models: what each takes beside a description, and what it takes where nothing is said.

Standard library only: the server checks requests by it. The figures are the pipelines' own, as diffusers 0.42.1 has
them, and their model cards'; those of MusicGen are audiocraft's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from backend.common.files import read_text
from backend.common.formats.safetensors import CONFIG

SONGS = "songs"  # what the options of these models are called beside those of the tasks
PIPELINE = "model_index.json"
ALWAYS = frozenset({"seconds", "seed", "variations", "formats"})
_NO_SONG_S = 1e9  # as long as this is none; a file can also say infinity
_LONGEST_TEXT = 1_000_000  # bytes of a description of a model: more is none


@dataclass(frozen=True)
class SongKind:
    """A kind of model. `takes` are the options beside those of every song, `defaults` what they are left alone.

    `lacks` are the reasons, by option, why a model of a kind that has it does not. `longest_s` is None where no limit
    is known.
    """

    name: str
    is_pipeline: bool  # whether it is a pipeline of diffusers
    title: str
    takes: frozenset[str]
    defaults: Mapping[str, float]
    longest_s: float | None = None
    lacks: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    sounds: frozenset[str] = frozenset()  # the files that it listens to, by the names of a job's inputs; none is needed

    @property
    def options(self) -> frozenset[str]:
        """All options that mean something to it."""
        return self.takes | ALWAYS


def _kind(name: str, title: str, takes: str, longest_s: float | None, **defaults: float) -> SongKind:
    return SongKind(name, True, title, frozenset(takes.split()), defaults, longest_s)


# They were trained on half a minute (audiocraft's `MusicGen.max_duration`); chances and guidance are audiocraft's.
_MUSICGEN: Mapping[str, float] = {"seconds": 10, "guidance_scale": 3, "temperature": 1, "top_k": 250, "top_p": 1}


def _musicgen(name: str, title: str, *sounds: str) -> SongKind:
    takes = frozenset(_MUSICGEN) - ALWAYS
    return SongKind(name, False, title, takes, _MUSICGEN, 30, sounds=frozenset(sounds))


KINDS: dict[str, SongKind] = {
    kind.name: kind
    for kind in (
        _kind(
            "AceStepPipeline",
            "ACE-Step 1.5",
            "lyrics language steps guidance_scale tempo_bpm key meter",
            600,
            seconds=60,
            steps=8,
            guidance_scale=7,
        ),
        _kind(
            "StableAudioPipeline",
            "Stable Audio",
            "negative_prompt steps guidance_scale",
            None,
            seconds=47,
            steps=100,
            guidance_scale=7,
        ),
        _kind(
            "StableAudio3Pipeline",
            "Stable Audio 3",
            "negative_prompt steps guidance_scale",
            384,
            seconds=30,
            steps=100,
            guidance_scale=1,
        ),
        _kind(
            "AudioLDM2Pipeline",
            "AudioLDM 2",
            "negative_prompt steps guidance_scale",
            None,
            seconds=10.24,
            steps=200,
            guidance_scale=3.5,
        ),
        _musicgen("MusicgenForConditionalGeneration", "MusicGen"),
        _musicgen("MusicgenMelodyForConditionalGeneration", "MusicGen Melody", "melody"),
        _kind(
            "LongCatAudioDiTPipeline",
            "LongCat AudioDiT",
            "negative_prompt steps guidance_scale",
            30,
            seconds=10,
            steps=16,
            guidance_scale=4,
        ),
    )
}


def declared(path: Path) -> str | None:
    """The class that a folder says its model is of; None for what is no such folder, or says nothing."""
    pipeline = _read(path / PIPELINE)
    if pipeline is not None:
        named = pipeline.get("_class_name")
    else:
        config = _read(path / CONFIG) or {}
        listed = config.get("architectures")
        named = listed[0] if isinstance(listed, list) and listed else None
    return named if isinstance(named, str) else None


def kind_of(path: Path) -> SongKind | None:
    """The kind of the song model in a folder, with what its own settings add; None where it is none."""
    kind = KINDS.get(declared(path) or "")
    if kind is None:
        return None
    refine = _REFINED.get(kind.name)
    return refine(kind, path) if refine else kind


def _ace_step(kind: SongKind, path: Path) -> SongKind:
    """The turbo models were taught what guidance would do, and their pipeline leaves it out."""
    transformer = _read(path / "transformer" / CONFIG) or {}
    if not (transformer.get("is_turbo") or transformer.get("model_version") == "turbo"):
        return kind
    reason = "guidance is a part of this model, which was trained for few steps"
    return _without(kind, "guidance_scale", reason)


def _stable_audio(kind: SongKind, path: Path) -> SongKind:
    """It always makes sound of one length, of which the seconds that were asked for are taken."""
    transformer, vae = _read(path / "transformer" / CONFIG) or {}, _read(path / "vae" / CONFIG) or {}
    try:
        hop = 1
        for ratio in vae["downsampling_ratios"]:
            hop *= int(ratio)
        longest_s = int(transformer["sample_size"]) * hop / int(vae["sampling_rate"])
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return kind
    seconds = min(kind.defaults["seconds"], longest_s)
    return replace(kind, longest_s=longest_s, defaults={**kind.defaults, "seconds": seconds})


def _stable_audio_3(kind: SongKind, path: Path) -> SongKind:
    """The distilled model takes eight steps and has guidance in its weights; how long it may be is in its embedder."""
    embedder, scheduler = (
        _read(path / name) or {} for name in (f"duration_embedder/{CONFIG}", "scheduler/scheduler_config.json")
    )
    longest_s = embedder.get("max_val")
    if isinstance(longest_s, int | float) and 0 < longest_s < _NO_SONG_S:
        seconds = min(kind.defaults["seconds"], longest_s)
        kind = replace(kind, longest_s=float(longest_s), defaults={**kind.defaults, "seconds": seconds})
    return replace(kind, defaults={**kind.defaults, "steps": 8 if scheduler.get("stochastic_sampling") else 100})


def _without(kind: SongKind, name: str, reason: str) -> SongKind:
    defaults = {key: value for key, value in kind.defaults.items() if key != name}
    return replace(kind, takes=kind.takes - {name}, defaults=defaults, lacks={**kind.lacks, name: reason})


_REFINED = {
    "AceStepPipeline": _ace_step,
    "StableAudioPipeline": _stable_audio,
    "StableAudio3Pipeline": _stable_audio_3,
}


def _read(file: Path) -> Mapping[str, Any] | None:
    """A small JSON object; None where there is none that can be read."""
    try:
        facts = file.stat()
        return _parsed(file, facts.st_size, facts.st_mtime_ns)
    except (OSError, ValueError, RecursionError):
        return None


@lru_cache(maxsize=1024)
def _parsed(file: Path, size: int, mtime_ns: int) -> Mapping[str, Any] | None:
    if size > _LONGEST_TEXT:
        return None
    found = json.loads(read_text(file))
    return found if isinstance(found, dict) else None
