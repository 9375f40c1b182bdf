"""What a GGUF file is for: a language model, or an addition, a picture model, a speech model, measured activations."""

from __future__ import annotations

from collections.abc import Iterable

from backend.common.errors import ModelBroken

_TYPES = {
    "adapter": ("a LoRA adapter", "Name it with its base model: `models: {ID: {base: …, adapters: [{path: …}]}}`."),
    "mmproj": ("a projector for images or sound", "Use the model file itself."),
    "imatrix": ("an importance matrix, made for quantizing a model", "Use the model file itself."),
}  # by `general.type`
_OF_ARCHITECTURE = {
    **dict.fromkeys(("clip", "mmproj"), _TYPES["mmproj"]),
    "imatrix": _TYPES["imatrix"],
    "controlvector": ("a control vector", "Use the model file itself."),
    **dict.fromkeys(
        ("whisper", "parakeet", "moonshine", "canary"), ("a model for speech recognition", "Choose a model for text.")
    ),
    **dict.fromkeys(
        ("wavtokenizer-dec", "outetts-vocoder", "snac", "dac", "orpheus-vocoder", "kokoro", "parler-tts", "dia"),
        ("a model for speech synthesis", "Choose a model for text."),
    ),
    **dict.fromkeys(
        (
            *(
                "flux",
                "flux2",
                "sd1",
                "sd2",
                "sd3",
                "sdxl",
                "aura",
                "auraflow",
                "hidream",
                "lumina2",
                "chroma",
                "z_image",
            ),
            *("qwen_image", "cosmos", "pig", "omnigen", "pixart", "kolors", "hunyuan_image"),
        ),
        ("a diffusion model for images", "Choose a model for text."),
    ),
    **dict.fromkeys(
        ("hyvid", "hunyuan_video", "wan", "ltxv", "mochi", "cogvideox"),
        ("a diffusion model for video", "Choose a model for text."),
    ),
    "t5encoder": ("a text encoder of a diffusion model", "Choose a model for text."),
}
# Files without an architecture: parts of tensor names, as stable-diffusion.cpp, llama.cpp and whisper.cpp write them.
_OF_TENSORS = (
    ((".lora_a", ".lora_A.", ".lora_down.", "lora_unet_"), _TYPES["adapter"]),
    ((".in_sum2", ".in_sum"), _TYPES["imatrix"]),
    (("model.diffusion_model.", "first_stage_model.", "double_blocks.", "joint_blocks."), _OF_ARCHITECTURE["flux"]),
    (("encoder.conv1.", "decoder.positional_embedding"), _OF_ARCHITECTURE["whisper"]),
    (("v.patch_embd.", "mm.0.", "a.conv1d."), _TYPES["mmproj"]),
)
_ENCODERS = (
    *("bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert", "eurobert"),
)


def check_purpose(name: str, file_type: str | None, architecture: str | None, pooling: int | None = None) -> None:
    """Raise ModelBroken for a file that makes neither text nor embeddings, by what its header declares.

    `pooling` is its `pooling_type`: 1 to 3 make embeddings.
    """
    found = _TYPES.get(file_type or "") or _OF_ARCHITECTURE.get((architecture or "").lower())
    if found:
        raise _refusal(name, *found)
    if file_type not in (None, "", "model"):
        raise _refusal(name, f"of the type {file_type}", "Use the model file itself.")
    if architecture in _ENCODERS and pooling not in (1, 2, 3):
        what = "a reranker, which scores pairs of texts" if pooling == 4 else "an encoder without pooling"
        raise _refusal(name, what, "Choose a model for text or embeddings.")


def is_lora_adapter(file_type: str | None, adapter_type: str | None) -> bool:
    """Return whether a file is a LoRA adapter, by its `general.type` and `adapter.type`."""
    return (file_type, adapter_type) == ("adapter", "lora")


def check_tensor_names(name: str, tensors: Iterable[str], has_architecture: bool) -> None:
    """Raise ModelBroken for tensors that no language model has.

    With a declared architecture only those of adapters and importance matrices count: some files hold a projector too.
    """
    names = list(tensors)
    for marks, found in _OF_TENSORS[:2] if has_architecture else _OF_TENSORS:
        if any(mark in tensor for tensor in names for mark in marks):
            raise _refusal(name, *found)


def _refusal(name: str, what: str, remedy: str) -> ModelBroken:
    return ModelBroken(f"{name} is {what}, not a language model.", remedy)
