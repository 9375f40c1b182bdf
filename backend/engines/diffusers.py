"""Songs by the pipelines of diffusers on torch: ACE-Step, Stable Audio, Stable Audio 3, AudioLDM 2, LongCat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.common.commands import command
from backend.common.engine_api import MODEL_DTYPE
from backend.common.errors import ModelBroken, ModelIncompatible, TouchstoneError
from backend.common.formats.safetensors import FETCH
from backend.common.types import Placement, PlacementPart
from backend.devices import torch_place
from backend.engines import Engine, FolderDownload, LoadRequest, ModelFormat
from backend.engines._audio.diffusers_calls import CALLS
from backend.engines._audio.diffusers_composer import SongComposer
from backend.engines._audio.memory_placement import MemoryPlacement, choose_placement, with_activation_memory
from backend.engines._audio.memory_report import load_error
from backend.engines._audio.song_session import SongSession
from backend.engines._torch.supported_backends import LIBRARY_BYTES, NEW_BACKENDS, NEW_RUNTIMES
from backend.tasks.songs.diffusers_folder import Pipeline, component_names, open_pipeline
from backend.tasks.songs.model_kinds import KINDS, PIPELINE

if TYPE_CHECKING:
    from backend.devices._mechanisms.torch_placement import TorchPlace


def _least_bytes(model_path: str) -> int:
    """Return the memory of a card that holds one part at a time: the largest at 16 bits, and its working memory."""
    pipeline = open_pipeline(Path(model_path))
    return with_activation_memory(2 * max(pipeline.parameter_count(name) for name in pipeline.models))


def _describe(path: Path) -> Mapping[str, Any]:
    pipeline = open_pipeline(path)
    stored = sum((Counter(model.dtypes) for model in pipeline.models.values()), Counter[str]())
    return {
        "architecture": pipeline.kind.name,
        "quantisation": max(stored, key=lambda name: stored[name], default=None),
        "context_tokens": None,
        "chat_template": False,
        "parts": len(pipeline.models),
    }


ENGINE = Engine(
    name="diffusers",
    library="diffusers",
    runtimes=NEW_RUNTIMES,
    backends=NEW_BACKENDS,
    tasks=("music",),
    formats=(
        ModelFormat(
            name="diffusers",
            files=(PIPELINE,),
            model_classes=frozenset(name for name, kind in KINDS.items() if kind.is_pipeline),
            validate=open_pipeline,
            describe=_describe,
            folder_download=FolderDownload(
                PIPELINE,
                title="diffusers",
                priority=20,
                list_components=component_names,
                check=open_pipeline,
            ),
        ),
    ),
    makes_files=True,
    least_bytes=_least_bytes,
    data_types=(MODEL_DTYPE,),
    data_types_by_backend={"cpu": (MODEL_DTYPE, "bfloat16")},  # bfloat16 where float32 does not fit in memory
)
_DIFFUSERS_BYTES = 300_000_000  # with transformers and accelerate, beyond torch, measured on x86-64


def estimate_bytes(model_path: str, context_tokens: int, slots: int) -> int | None:
    """Return the bytes of weights at 16 bits, their working memory, and the libraries."""
    return (
        with_activation_memory(2 * open_pipeline(Path(model_path)).parameter_count()) + LIBRARY_BYTES + _DIFFUSERS_BYTES
    )


def check() -> dict[str, str]:
    """Import the libraries; return their versions."""
    import accelerate
    import diffusers
    import numpy
    import soundfile
    import torch
    import transformers

    libraries = (torch, diffusers, transformers, accelerate, numpy, soundfile)
    return {name.__name__: str(name.__version__) for name in libraries}


def load(request: LoadRequest) -> SongSession:
    """Load a folder. Raises ModelBroken, ModelIncompatible, ModelLoadFailed, OutOfMemory, DeviceNotReady."""
    import backend.tasks.songs.job  # noqa: F401 (so that the first job need not wait)

    pipeline = open_pipeline(Path(request.model_path))
    place = torch_place(request.device, request.detected_device)
    place.torch.set_num_threads(request.threads)
    memory_placement = choose_placement(pipeline, place)
    try:
        pipe = _opened(pipeline, place, memory_placement)
        _check_complete(pipeline, pipe)
        placement = _placed(pipe, place, memory_placement)
    except TouchstoneError:
        raise
    except Exception as error:
        raise load_error(pipeline.path.name, memory_placement.description, error) from error
    composer = SongComposer(CALLS[pipeline.kind.name](pipe), place, memory_placement)
    taken = place.taken_since(request.card_free_bytes)

    def find_placement() -> Placement | None:
        """Return where the weights are; None if each model is on the card only while it runs."""
        return None if memory_placement.sequential_offload else place.placement(_tensors(pipe))

    return SongSession(composer, placement, request.threads, check(), taken, find_placement)


def _opened(pipeline: Pipeline, place: TorchPlace, memory_placement: MemoryPlacement) -> Any:
    """Return the pipeline in system memory."""
    import diffusers
    import transformers

    diffusers.utils.logging.set_verbosity_error()
    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    kind = getattr(diffusers, pipeline.kind.name, None)
    if kind is None:
        raise ModelIncompatible(
            f"diffusers {diffusers.__version__} in this runtime does not support {pipeline.kind.title}.",
            f"Update the runtime: {command('runtimes update NAME')}.",
        )
    number = getattr(place.torch, memory_placement.dtype)
    pipe = kind.from_pretrained(
        str(pipeline.path), torch_dtype=number, use_safetensors=True, local_files_only=True, low_cpu_mem_usage=True
    )
    pipe.set_progress_bar_config(disable=True)
    if hasattr(pipe.vae, "use_tiling"):  # always, so that the result of a seed does not depend on the memory
        pipe.vae.enable_tiling()
    if hasattr(pipe.vae, "use_slicing"):
        pipe.vae.enable_slicing()
    return pipe


def _placed(pipe: Any, place: TorchPlace, memory_placement: MemoryPlacement) -> Placement:
    """Move the pipeline to the device; or let each model move there while it runs, once now as a proof."""
    if not memory_placement.sequential_offload:
        pipe.to(place.device)
        placement = place.placement(_tensors(pipe))
        return replace(placement, evidence=f"{placement.evidence} Weights are {memory_placement.description}.")
    shares = []
    for model in _models(pipe):
        before = place.allocated_bytes() or 0
        model.to(place.device)
        held = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))
        taken = (place.allocated_bytes() or 0) - before
        shares.append((held, taken >= held))
        model.to("cpu")
    total = sum(held for held, _ in shares)
    proved = sum(held for held, there in shares if there)
    pipe.enable_model_cpu_offload(device=place.device)
    evidence = (
        f"torch: each of {len(shares)} models was moved to {place.device} and back, where the allocator counted "
        f"{proved} of {total} bytes; in a job each is there while it runs. Weights are {memory_placement.description}."
    )
    return Placement(proved / total, [PlacementPart(place.id, proved / total)], evidence)


def _models(pipe: Any) -> list[Any]:
    return [model for model in pipe.components.values() if hasattr(model, "parameters")]


def _tensors(pipe: Any) -> list[Any]:
    return [tensor for model in _models(pipe) for tensor in (*model.parameters(), *model.buffers())]


def _check_complete(pipeline: Pipeline, pipe: Any) -> None:
    """Check that the files have all weights: diffusers fills missing ones with random numbers. Raises ModelBroken."""
    from safetensors import safe_open

    for name, checkpoint in pipeline.models.items():
        model = getattr(pipe, name)
        if not type(model).__module__.startswith("diffusers."):
            continue  # transformers renames tensors and ties some
        stored: set[str] = set()
        for file in checkpoint.files:
            with safe_open(str(file), framework="pt") as opened:
                stored.update(opened.keys())
        if missing := sorted(set(model.state_dict()) - stored):
            raise ModelBroken(
                f"{pipeline.path.name} lacks {len(missing)} of the weights of its {name}, such as {missing[0]}.",
                FETCH,
            )
