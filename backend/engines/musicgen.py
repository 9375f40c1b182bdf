"""Songs by MusicGen and MusicGen Melody of transformers on torch, mono and stereo."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.common.engine_api import MODEL_DTYPE
from backend.common.errors import ModelBroken, TouchstoneError
from backend.common.formats.safetensors import CONFIG, FETCH
from backend.common.types import Placement
from backend.devices import torch_place
from backend.engines import Engine, LoadRequest, ModelFormat
from backend.engines._audio.memory_placement import MemoryPlacement, choose_placement, with_activation_memory
from backend.engines._audio.memory_report import load_error
from backend.engines._audio.musicgen_composer import MusicgenComposer
from backend.engines._audio.musicgen_sampler import condition_from_the_first
from backend.engines._audio.song_session import SongSession
from backend.engines._torch.supported_backends import BACKENDS, LIBRARY_BYTES, RUNTIMES
from backend.tasks.songs.musicgen_folder import MELODY, PLAIN, TOKENIZER, MusicgenFolder, open_musicgen

if TYPE_CHECKING:
    from backend.devices._mechanisms.torch_placement import TorchPlace

ENGINE = Engine(
    name="musicgen",
    library="transformers",
    runtimes=RUNTIMES,
    backends=BACKENDS,
    tasks=("music",),
    formats=(
        ModelFormat(
            name="safetensors",
            files=(CONFIG, TOKENIZER, "*.safetensors"),
            model_classes=frozenset({PLAIN, MELODY}),
            validate=open_musicgen,
        ),
    ),
    makes_files=True,
    data_types=(MODEL_DTYPE,),
    data_types_by_backend={"cpu": (MODEL_DTYPE, "bfloat16")},  # bfloat16 where float32 does not fit in memory
)
_TRANSFORMERS_BYTES = 250_000_000


def estimate_bytes(model_path: str, context_tokens: int, slots: int) -> int | None:
    """Return the bytes of weights at 16 bits, their working memory, and the libraries."""
    return (
        with_activation_memory(2 * open_musicgen(Path(model_path)).parameter_count())
        + LIBRARY_BYTES
        + _TRANSFORMERS_BYTES
    )


def check() -> dict[str, str]:
    """Import the libraries; return their versions."""
    import numpy
    import soundfile
    import tokenizers
    import torch
    import transformers

    libraries = (torch, transformers, tokenizers, numpy, soundfile)
    return {name.__name__: str(name.__version__) for name in libraries}


def load(request: LoadRequest) -> SongSession:
    """Load a folder. Raises ModelBroken, ModelIncompatible, ModelLoadFailed, OutOfMemory, DeviceNotReady."""
    import backend.tasks.songs.job  # noqa: F401 (so that the first job need not wait)

    folder = open_musicgen(Path(request.model_path))
    place = torch_place(request.device, request.detected_device)
    place.torch.set_num_threads(request.threads)
    memory_placement = choose_placement(folder, place)
    text = _tokenizer(folder)
    try:
        model = _model(folder, place, memory_placement)
    except TouchstoneError:
        raise
    except Exception as error:
        raise load_error(folder.path.name, memory_placement.description, error) from error

    def find_placement() -> Placement:
        return place.placement([*model.parameters(), *model.buffers()])

    composer = MusicgenComposer(model, text, place, memory_placement, folder.path)
    taken = place.taken_since(request.card_free_bytes)
    return SongSession(composer, find_placement(), request.threads, check(), taken, find_placement)


def _tokenizer(folder: MusicgenFolder) -> Any:
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_file(str(folder.tokenizer))
    except Exception as error:  # the library has no more specific class
        raise ModelBroken(f"{folder.path.name}/{TOKENIZER} cannot be read: {str(error)[:300]}.", FETCH) from error


def _model(folder: MusicgenFolder, place: TorchPlace, memory_placement: MemoryPlacement) -> Any:
    """Return the model on the device; EnCodec stays in float32, in which its filters were trained."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    kind = getattr(transformers, folder.kind)
    model, loading_info = kind.from_pretrained(
        str(folder.path),
        dtype=getattr(place.torch, memory_placement.dtype),
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
        ignore_mismatched_sizes=True,  # so that they are reported
        output_loading_info=True,
    )
    _check_complete(folder, loading_info)
    if place.access.plain_only:
        model.set_attn_implementation("eager")
    decoder = model.config.decoder
    fallback = {"pad_token_id": decoder.pad_token_id, "bos_token_id": decoder.bos_token_id}
    model.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=_first(model.generation_config.decoder_start_token_id, decoder.bos_token_id),
        **{name: _first(getattr(model.generation_config, name), value) for name, value in fallback.items()},
    )
    model.audio_encoder.float()
    if folder.kind == MELODY:
        condition_from_the_first(model)
    return model.eval().to(place.device)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _check_complete(folder: MusicgenFolder, loading_info: Mapping[str, Any]) -> None:
    """transformers fills what a file lacks with random numbers and a warning. Raises ModelBroken."""
    if missing := sorted(str(name) for name in loading_info.get("missing_keys", ())):
        raise ModelBroken(f"{folder.path.name} lacks {len(missing)} of its weights, such as {missing[0]}.", FETCH)
    mismatched = [key[0] if isinstance(key, tuple) else key for key in loading_info.get("mismatched_keys", ())]
    if mismatched:
        raise ModelBroken(
            f"{folder.path.name} has weights whose shapes do not match its config.json: {min(map(str, mismatched))}.",
            FETCH,
        )
