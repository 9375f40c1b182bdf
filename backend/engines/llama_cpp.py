"""llama.cpp: its own server and samplers, on the CPU inside this process, on cards as a child process.

On the CPU by `xllamacpp`, whose `Server` always opens an HTTP listener. Here it is a Unix socket in a private folder,
removed as soon as the model is loaded (a loopback port with a random key on systems without such sockets), so no other
process can use it. `_llama/server_process.py` reaches cards. A card's worker sees only that card and the CPU's worker
none, so the buffers in the load log show where the model is.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend.common import error_patterns
from backend.common.errors import ModelIncompatible, ModelLoadFailed, TouchstoneError
from backend.common.formats.gguf import Header, parts, read_header
from backend.common.formats.gguf.vocabulary import Vocabulary, read_vocabulary
from backend.common.types import Placement, PlacementPart
from backend.devices import check_processor, show_ggml_device, split_id
from backend.engines import Emit, Engine, LoadRequest, RunRequest, RunResult, Session
from backend.engines._formats import GGUF
from backend.engines._llama import comparison, server_process
from backend.engines._llama.embeddings import embed
from backend.engines._llama.prompt import prompt_of
from backend.engines._llama.request import completion_body
from backend.engines._llama.stream import Stream
from backend.engines._memory_errors import LOWER_CONTEXT, does_not_fit
from backend.engines._text.chat_prompt import Chat
from backend.engines._text.logit_bias import check_biases, check_tokens
from backend.engines._text.processor_check import ProcessorCheck

ENGINE = Engine(
    name="llama.cpp",
    library="xllamacpp",
    runtimes=("base", *server_process.RUNTIMES),
    backends=("cpu", *server_process.BACKENDS),
    tasks=("text", "lyrics", "embeddings"),
    formats=(GGUF,),
    batches=True,
    plans_memory=True,
    data_types_by_backend=dict.fromkeys(
        server_process.BACKENDS, ("float16", "bfloat16", "Q4_K", "Q6_K", "Q8_0", "Q4_0", "Q4_1")
    ),
    file_tasks=("embeddings",),
    options=frozenset(
        "max_tokens temperature top_p top_k seed stop repetition_penalty presence_penalty frequency_penalty"
        " logit_bias logprobs response_format raw tools".split()
    ),
)
_LIBRARY_BYTES = 100_000_000  # measured with SmolLM2-135M on x86-64: 63 MB beyond weights and KV cache
_READY = re.compile(r"listening on ")  # the last line of loading
_LOG_S = 1.0
_WARNINGS = 2  # llama.cpp's verbosity level
PROMPT_CHUNK_TOKENS = 64  # a cancel takes effect between prefill chunks
CARD_CHUNK_TOKENS = 512
_BUFFER = re.compile(r"(\S+) +(model|KV|compute) buffer size =\s+([\d.]+) MiB")
_LAYERS = re.compile(r"offloaded \d+/\d+ layers to GPU")
_CAUSE_LINE = re.compile(
    r"error loading model: (.*)|failed to (?:load|open|allocate)[^\n]*|device \S+ does not support [^\n.]*"
)


def estimate_bytes(model_path: str, context_tokens: int, slots: int) -> int | None:
    """Return the bytes of weights, KV cache, and the library as measured."""
    header = read_header(Path(model_path))
    if header.cache_bytes_per_token is None:
        return None
    context = min(context_tokens, header.context_length or context_tokens)
    file_bytes = sum(part.stat().st_size for part in parts(Path(model_path))) or header.file_bytes
    return file_bytes + header.cache_bytes_per_token * context * slots + _LIBRARY_BYTES


def check() -> dict[str, str]:
    """Import the library, query the CPU, which raises if its build does not match, and return the versions.

    Raises UnusableDataType if its products with weights in a format are wrong on this CPU.
    In an environment without it, the program for cards must be installed.
    """
    found = _versions()
    if library := sys.modules.get("xllamacpp"):
        if not any("CPU" in str(device.get("name", "")) for device in library.get_device_info()):
            raise OSError("xllamacpp lists no CPU device")
        for extension in sorted(Path(str(library.__file__)).parent.glob("xllamacpp*.so")):
            check_processor(extension)
    return found


def _versions() -> dict[str, str]:
    """Return the version of the library, or that of the program for cards where only that is installed."""
    try:
        import xllamacpp
    except ModuleNotFoundError as missing:
        if missing.name != "xllamacpp" or not server_process.is_there():
            raise
        return server_process.check()
    return {"xllamacpp": str(xllamacpp.__version__)}


def load(request: LoadRequest) -> LlamaSession:
    """Load a GGUF file. Raises ModelBroken, ModelLoadFailed, ModelIncompatible, OutOfMemory, DeviceWrong."""
    path = Path(request.model_path)
    header = read_header(path)
    vocabulary = read_vocabulary(path, merges=False)
    names = {f"{name}_token": vocabulary.text(name) or "" for name in ("bos", "eos", "unk", "pad")}
    chat = Chat(vocabulary.chat_template, names, vocabulary.control_marks())
    # The server divides the context equally among the slots.
    context = min(request.context_tokens, header.context_length or request.context_tokens) * request.slots
    start = _on_card if split_id(request.device)[0] in server_process.BACKENDS else _in_process
    with chat.kept_if_loaded():
        server, log = start(request, header, context)
        placement = _placement(log, request.device)
        if start is _on_card and not header.makes_embeddings:
            each = replace(request, context_tokens=context // request.slots)
            placement = _compare(server, each, vocabulary).add_to(placement)
    if request.device == "cpu":
        placement = replace(placement, evidence=f"{placement.evidence}; {_describe_library()}")
    return LlamaSession(server, request, placement, chat, vocabulary)


def _on_card(request: LoadRequest, header: Header, context_tokens: int) -> tuple[Any, str]:
    """Start the program with all layers on the only card that is visible; return it and its log."""
    batch = context_tokens // request.slots if header.makes_embeddings else CARD_CHUNK_TOKENS
    arguments = [
        *_program_arguments(request, batch),
        *("--ctx-size", str(context_tokens), "--parallel", str(request.slots)),
        *("--device", server_process.CARD, "--n-gpu-layers", "999"),
        *(("--embedding",) if header.makes_embeddings else ()),
    ]
    if request.detected_device:
        show_ggml_device(request.device, request.detected_device)
    try:
        server = server_process.LlamaServer(Path(request.scratch), arguments)
    except RuntimeError as error:
        raise _load_error(Path(request.model_path), str(error), context_tokens) from error
    return server, server.log


def _program_arguments(request: LoadRequest, batch: int) -> list[str]:
    """Return the arguments that do not depend on the device."""
    return [
        *("--model", request.model_path, "--batch-size", str(batch), "--ubatch-size", str(batch)),
        *("--threads", str(request.threads), "--fit", "off", "--cache-ram", "0", "--no-ui", "--verbosity", "4"),
    ]


def _compare(server: Any, request: LoadRequest, vocabulary: Vocabulary) -> ProcessorCheck:
    """Compare a card's server with a copy on the processor, if that is due; return the check. Raises DeviceWrong."""
    path = Path(request.model_path)
    copy_bytes = estimate_bytes(request.model_path, comparison.CONTEXT_TOKENS, 1) or path.stat().st_size
    comparing = ProcessorCheck(ENGINE.name, request, path.name, _versions(), copy_bytes)
    if comparing.is_due:
        adds_begin = vocabulary.model == "llama" if vocabulary.add_bos is None else vocabulary.add_bos
        begin = vocabulary.special.get("bos") if adds_begin else None
        try:
            comparison.compare(server, request, comparing, begin, _program_arguments(request, CARD_CHUNK_TOKENS))
        except BaseException:
            server.close()
            raise
    return comparing


def _in_process(request: LoadRequest, header: Header, context_tokens: int) -> tuple[Any, str]:
    """Start the library's server in this process; return it and its log."""
    import xllamacpp

    path = Path(request.model_path)
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = context_tokens
    params.n_parallel = request.slots
    params.n_batch = params.n_ubatch = PROMPT_CHUNK_TOKENS
    if header.makes_embeddings:
        params.embedding = True
        params.n_batch = params.n_ubatch = context_tokens // request.slots  # a text is computed in one piece
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = request.threads
    # A build may hold a card's backend too, as on a Mac: without these it computes large products and the cache there.
    params.n_gpu_layers = 0
    params.no_op_offload = params.no_kv_offload = True
    params.fit_params = False  # would shrink the context without an error
    params.cache_ram_mib = 0  # default: up to 8 GiB of old prompts
    params.force_pure_content_parser = True  # text as generated: tool calls and reasoning are not parsed
    params.reasoning_format = xllamacpp.common_reasoning_format.COMMON_REASONING_FORMAT_NONE
    params.ui = params.endpoint_slots = False
    params.api_keys = [secrets.token_urlsafe(32)]
    params.verbosity = 4  # the level at which buffer sizes are logged
    socket = Path(request.scratch) / "s.sock"
    if sys.platform != "win32":
        params.hostnames = [str(socket)]
    log = Path(request.scratch) / "load.log"
    try:
        with _stderr_into(log):
            try:
                server = xllamacpp.Server(params)
            except RuntimeError:
                _await_line(log, _CAUSE_LINE)
                raise
            _await_line(log, _READY)
            _reduce_log_level(xllamacpp)
    except RuntimeError as error:
        raise _load_error(path, log.read_text(errors="replace"), context_tokens) from error
    finally:
        socket.unlink(missing_ok=True)
    return server, log.read_text(errors="replace")


class LlamaSession(Session):
    """One loaded model. `run` may be called from as many threads at once as it has slots."""

    def __init__(
        self, server: Any, request: LoadRequest, placement: Placement, chat: Chat, vocabulary: Vocabulary
    ) -> None:
        self._server = server
        self._chat = chat
        self._vocabulary = vocabulary
        self._context_tokens = request.context_tokens
        self.placement = placement
        self.threads: int | None = request.threads
        self.versions = _versions()

    def run(self, request: RunRequest, emit: Emit) -> RunResult:
        """Generate until a stop, the limit or a cancel.

        Raises ContextLengthExceeded, ModelIncompatible, and for a schema Validation or UnsupportedParameter.
        """
        if request.texts is not None:
            return embed(self._server, request.texts, request.folder, emit)
        options = request.options
        check_biases(options["logit_bias"], len(self._vocabulary.tokens))  # the library ignores unknown ids
        body = completion_body(options, request.seed, self._context_tokens, request.reuse_cache)
        made = self._chat.prompt(request)
        if made.tokens is not None:
            check_tokens(made.tokens, len(self._vocabulary.tokens))
        reading = Stream(made.announce(emit), options["stop"], options["logprobs"])
        prompt = made.tokens or prompt_of(made.pieces, self._vocabulary)
        self._server.handle_completions({**body, "prompt": prompt}, reading)
        return replace(reading.result(made.template), chosen=made.chosen)


def _placement(log: str, device: str) -> Placement:
    """Return shares of weight and KV cache bytes by buffer, as llama.cpp logs them. All cards are `device`.

    On the processor the buffers of the KV cache and of the computation must be there as well.
    """
    buffers = [(name, float(mib)) for kind, name, mib in _named(log) if kind == "model"]
    if not sum(mib for _, mib in buffers):
        return Placement(None, [], "llama.cpp's load log lists no model buffer, so the placement is unknown")
    others = [(f"{name} {kind}", mib) for kind, name, mib in _named(log) if kind != "model" and not _is_host(name)]
    if device == "cpu" and others:
        listed = ", ".join(f"{name} {mib:.2f} MiB" for name, mib in others)
        return Placement(None, [], f"llama.cpp's load log lists buffers outside the CPU: {listed}: placement unknown")
    sizes: dict[str, float] = {}
    for name, mib in buffers:
        here = "cpu" if _is_host(name) else name if device == "cpu" else device
        sizes[here] = sizes.get(here, 0.0) + mib
    total = sum(sizes.values())
    parts = [PlacementPart(where, mib / total) for where, mib in sizes.items()]
    listed = ", ".join(f"{name} {mib:.2f} MiB" for name, mib in buffers)
    layers = "".join(f"; {match[0]}" for match in [_LAYERS.search(log)] if match)
    evidence = f"model buffer sizes in llama.cpp's load log: {listed}{layers}"
    return Placement(sizes.get(device, 0.0) / total, parts, evidence)


def _named(log: str) -> list[tuple[str, str, float]]:
    """Return kind (model, KV, compute), name and MiB of each buffer in a load log."""
    return [(kind, name, float(mib)) for name, kind, mib in _BUFFER.findall(log)]


def _is_host(name: str) -> bool:
    """Return whether a buffer is in system memory, which a card may read but does not own."""
    return name.upper().startswith(("CPU", "HOST")) or name.endswith("_Host")


def _describe_library() -> str:
    """Return which devices the library could use, and what keeps it on the CPU."""
    import xllamacpp

    others = [str(each.get("name")) for each in xllamacpp.get_device_info() if "CPU" not in str(each.get("name", ""))]
    if not others:
        return "the library has no other device than the CPU"
    return f"the library also has {', '.join(others)}, and no layer, KV cache or operation is offloaded"


def _load_error(path: Path, log: str, context_tokens: int) -> TouchstoneError:
    lines = [match.group(1) or match.group(0) for match in _CAUSE_LINE.finditer(log)]
    reason = lines[0] if lines else "llama.cpp logged no reason"
    if error_patterns.classify_error_text(log) == "out_of_memory":
        return does_not_fit(f"{path.name} with a context of {context_tokens} tokens", f"{reason}.", LOWER_CONTEXT)
    if "does not support" in reason:
        return ModelIncompatible(f"llama.cpp cannot run models on this device: {reason}.", "Choose another device.")
    if "unknown model architecture" in log or "unsupported" in reason:
        return ModelIncompatible(
            f"llama.cpp cannot run {path.name}: {reason}.", "Choose a model of another architecture."
        )
    return ModelLoadFailed(f"llama.cpp could not load {path.name}: {reason}.", "Download the model file again.")


def _await_line(log: Path, line: re.Pattern[str]) -> None:
    """Wait for a line of the log: llama.cpp writes it from a separate thread, which may be late on a busy machine."""
    end = time.monotonic() + _LOG_S
    while not line.search(log.read_text(errors="replace")) and time.monotonic() < end:
        time.sleep(0.005)


def _reduce_log_level(library: Any) -> None:
    """Log only warnings and errors: a log line for each request wakes the server, two lines per slot.

    The library has no Python function for that, but exports a C++ function; without it the lines remain.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(library.xllamacpp.__file__)._Z30common_log_set_verbosity_tholdi(_WARNINGS)


@contextlib.contextmanager
def _stderr_into(path: Path) -> Iterator[None]:
    """Redirect fd 2 to a file for the block, then copy it to the previous fd 2.

    A pipe would block: the constructor holds the interpreter lock, so no thread could drain it.
    """
    saved = os.dup(2)
    target = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    os.dup2(target, 2)
    os.close(target)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        with contextlib.suppress(OSError):
            os.write(2, path.read_bytes()[-65536:])
