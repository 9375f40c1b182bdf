"""The wording of out-of-memory errors, for all engines."""

from __future__ import annotations

from backend.common import error_patterns
from backend.common.errors import OutOfMemory

LOWER_CONTEXT = (
    "Lower text.context_tokens or text.slots in config.yaml, close other programs, or choose a smaller model."
)
FREE_MEMORY = "Close other programs, unload other models, or choose a device with more memory."
_MESSAGE_CHARS = 600


def out_of_memory_message(error: BaseException) -> str | None:
    """Return the library's message with the exception's class if memory ran out, otherwise None."""
    message = f"{type(error).__name__}: {error}".strip()
    if isinstance(error, MemoryError) or error_patterns.classify_error_text(message) == "out_of_memory":
        return message[:_MESSAGE_CHARS]
    return None


def does_not_fit(title: str, message: str, remedy: str = FREE_MEMORY) -> OutOfMemory:
    """Return the error for a model that does not fit into memory while it is loaded."""
    return OutOfMemory(f"{title} does not fit into memory: {message}", remedy)


def ran_out_of_memory(title: str, message: str, remedy: str = FREE_MEMORY) -> OutOfMemory:
    """Return the error for a loaded model, or a device, that runs out of memory during a job."""
    return OutOfMemory(f"{title} ran out of memory: {message}", remedy)


def needs_more_memory(
    title: str, needed_bytes: int, free_bytes: int, where: str = "", remedy: str = FREE_MEMORY
) -> OutOfMemory:
    """Return the error for a model that is known not to fit before it is loaded. `where` follows the needed size."""
    return OutOfMemory(
        f"{title} needs {needed_bytes / 1e9:.1f} GB{where}; {free_bytes / 1e9:.1f} GB available.", remedy
    )
