"""The supported song models: the options that each takes, their defaults and limits.

Standard library only, since the server validates requests with this table. The values come from the pipelines in
diffusers 0.42.1 and their model cards; those of MusicGen come from audiocraft.
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

SONGS = "songs"  # the name of this set of options, next to those of the tasks
PIPELINE = "model_index.json"
COMMON_OPTIONS = frozenset({"seconds", "seed", "variations", "formats"})
_UNLIMITED_S = 1e9  # a length limit from here on means no limit; a file can also contain infinity
_MAX_CONFIG_BYTES = 1_000_000  # a larger file is not a model configuration


@dataclass(frozen=True)
class SongKind:
    """A kind of song model.

    `takes` are its options besides COMMON_OPTIONS, `defaults` their default values. `lacks` gives, by option, the
    reason why this model does not take an option of its kind. `longest_s` is None if no limit is known.
    """

    name: str
    is_pipeline: bool  # whether it is a pipeline of diffusers
    title: str
    takes: frozenset[str]
    defaults: Mapping[str, float]
    longest_s: float | None = None
    lacks: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    sounds: frozenset[str] = frozenset()  # optional audio inputs, by the names of a job's inputs

    @property
    def options(self) -> frozenset[str]:
        """All options that the model takes."""
        return self.takes | COMMON_OPTIONS


def _kind(name: str, title: str, takes: str, longest_s: float | None, **defaults: float) -> SongKind:
    return SongKind(name, True, title, frozenset(takes.split()), defaults, longest_s)


# MusicGen was trained on 30 s (audiocraft's `MusicGen.max_duration`); sampling and guidance defaults are audiocraft's.
_MUSICGEN: Mapping[str, float] = {"seconds": 10, "guidance_scale": 3, "temperature": 1, "top_k": 250, "top_p": 1}


def _musicgen(name: str, title: str, *sounds: str) -> SongKind:
    takes = frozenset(_MUSICGEN) - COMMON_OPTIONS
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


def declared_class(path: Path) -> str | None:
    """Return the model class that a folder's configuration names; None if there is none."""
    pipeline = _read_json(path / PIPELINE)
    if pipeline is not None:
        class_name = pipeline.get("_class_name")
    else:
        config = _read_json(path / CONFIG) or {}
        architectures = config.get("architectures")
        class_name = architectures[0] if isinstance(architectures, list) and architectures else None
    return class_name if isinstance(class_name, str) else None


def kind_of(path: Path) -> SongKind | None:
    """Return the kind of the song model in a folder, refined by its configuration; None if it is not a song model."""
    kind = KINDS.get(declared_class(path) or "")
    if kind is None:
        return None
    refine = _REFINEMENTS.get(kind.name)
    return refine(kind, path) if refine else kind


def _ace_step(kind: SongKind, path: Path) -> SongKind:
    """Remove the guidance option for turbo models: they are distilled with guidance, and their pipeline ignores it."""
    transformer = _read_json(path / "transformer" / CONFIG) or {}
    if not (transformer.get("is_turbo") or transformer.get("model_version") == "turbo"):
        return kind
    reason = "guidance is distilled into this model"
    return _remove_option(kind, "guidance_scale", reason)


def _stable_audio(kind: SongKind, path: Path) -> SongKind:
    """Limit the length: the model always generates the same length, and the requested seconds are cut from it."""
    transformer, vae = _read_json(path / "transformer" / CONFIG) or {}, _read_json(path / "vae" / CONFIG) or {}
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
    """Read the length limit from the duration embedder. The distilled model defaults to eight steps."""
    embedder, scheduler = (
        _read_json(path / name) or {} for name in (f"duration_embedder/{CONFIG}", "scheduler/scheduler_config.json")
    )
    longest_s = embedder.get("max_val")
    if isinstance(longest_s, int | float) and 0 < longest_s < _UNLIMITED_S:
        seconds = min(kind.defaults["seconds"], longest_s)
        kind = replace(kind, longest_s=float(longest_s), defaults={**kind.defaults, "seconds": seconds})
    return replace(kind, defaults={**kind.defaults, "steps": 8 if scheduler.get("stochastic_sampling") else 100})


def _remove_option(kind: SongKind, name: str, reason: str) -> SongKind:
    defaults = {key: value for key, value in kind.defaults.items() if key != name}
    return replace(kind, takes=kind.takes - {name}, defaults=defaults, lacks={**kind.lacks, name: reason})


_REFINEMENTS = {
    "AceStepPipeline": _ace_step,
    "StableAudioPipeline": _stable_audio,
    "StableAudio3Pipeline": _stable_audio_3,
}


def _read_json(file: Path) -> Mapping[str, Any] | None:
    """Return a small JSON object; None if the file is missing or cannot be parsed. Cached until the file changes."""
    try:
        stat = file.stat()
        return _parse_json(file, stat.st_size, stat.st_mtime_ns)
    except (OSError, ValueError, RecursionError):
        return None


@lru_cache(maxsize=1024)
def _parse_json(file: Path, size: int, mtime_ns: int) -> Mapping[str, Any] | None:
    if size > _MAX_CONFIG_BYTES:
        return None
    content = json.loads(read_text(file))
    return content if isinstance(content, dict) else None
