"""Embeddings by llama.cpp: one vector of length 1 per text, in one `.npy` file."""

from __future__ import annotations

import ctypes
import math
import struct
import threading
from pathlib import Path

from backend.common.engine_api import ProgressEvent
from backend.common.errors import ContextLengthExceeded, ModelIncompatible, WorkerCrashed
from backend.engines import Emit, RunResult
from backend.engines._llama.batch_model import Batch
from backend.engines._llama.loaded_model import LoadedModel
from backend.engines._llama.vocabulary import LlamaVocabulary
from backend.engines._onnx.npy import write_rows

FILE = "embeddings.npy"
_NO_POOLING = 0


class Embedder:
    """Computes the vectors of texts. Its calls may come from several threads."""

    def __init__(self, loaded: LoadedModel, vocabulary: LlamaVocabulary) -> None:
        self._loaded, self._vocabulary = loaded, vocabulary
        self._lock = threading.Lock()
        llama = loaded.library.llama
        self._size: int = llama.llama_model_n_embd_out(loaded.model)
        self._is_pooled = llama.llama_pooling_type(loaded.context) != _NO_POOLING
        self._batch = Batch(loaded.chunk_tokens, loaded.slots)

    def embed(self, texts: list[str], folder: str, emit: Emit) -> RunResult:
        """Compute the vectors one text after the other, so that a cancel takes effect between two texts.

        Raises ContextLengthExceeded, ModelIncompatible.
        """
        rows: list[bytes] = []
        prompt_tokens = 0
        for text in texts:
            which = f"Text {len(rows) + 1} of {len(texts)}"
            tokens = self._vocabulary.tokens(text, add_special=True)
            with self._lock:
                rows.append(self._vector(tokens, which))
            prompt_tokens += len(tokens)
            done: ProgressEvent = {"phase": "embedding", "done": len(rows), "total": len(texts), "unit": "texts"}
            if emit("progress", done) and len(rows) < len(texts):
                return RunResult({"texts": len(rows), "prompt_tokens": prompt_tokens}, "cancelled")
        write_rows(Path(folder) / FILE, rows)
        emit("artifact", {"name": FILE, "media_type": "application/octet-stream"})
        return RunResult({"texts": len(rows), "prompt_tokens": prompt_tokens}, "stop")

    def _vector(self, tokens: list[int], which: str) -> bytes:
        """Return the vector of a text as float32 values."""
        limit = self._loaded.chunk_tokens
        if len(tokens) > limit:
            raise ContextLengthExceeded(
                f"{which} has {len(tokens)} tokens; the context holds {limit}.",
                "Split it into shorter texts, or raise text.context_tokens in config.yaml if the model supports more.",
                prompt_tokens=len(tokens),
                context_tokens=limit,
            )
        if not tokens or not self._is_pooled:
            why = "it has no tokens" if not tokens else "the model pools no vectors"
            raise ModelIncompatible(f"llama.cpp rejected {which}: {why}.", "Change the text, or choose another model.")
        llama, context = self._loaded.library.llama, self._loaded.context
        if memory := llama.llama_get_memory(context):
            llama.llama_memory_clear(memory, True)
        self._batch.clear()
        self._batch.add(0, 0, tokens, True, all_outputs=True)
        if result := llama.llama_decode(context, self._batch.struct):
            raise RuntimeError(f"llama.cpp could not compute a vector: llama_decode returned {result}")
        address = llama.llama_get_embeddings_seq(context, 0)
        values = (ctypes.c_float * self._size).from_address(address)[:]
        length = math.sqrt(math.fsum(value * value for value in values))
        if not math.isfinite(length):
            raise WorkerCrashed(
                "The model produced NaN or infinite values.",
                "Retry the job: a new worker runs it. If it fails again, refresh the devices, which probes it again.",
            )
        return struct.pack(f"<{self._size}f", *(value / length if length else value for value in values))
