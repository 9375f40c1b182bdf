"""Decode steps that are recorded once and replayed: one CUDA graph per number of rows and attention window.

A step of a small model is several hundred kernels of a few microseconds each, which Python launches far more slowly
than a card runs them. A graph launches all of them at once, sampling included. Numbers of rows are powers of two,
padded with rows that write nothing; windows double. A step that occurs for the first time runs kernel by kernel, which
loads what a recording needs; a step that occurs again is recorded. A compiled step replaces the recorded one when its
compilation is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from backend.engines._text.batch_decoder import SampledToken, TextSequence
from backend.engines._text.kv_cache import Place
from backend.engines._torch.batch_model import TorchBatchModel, to_sampled_tokens
from backend.engines._torch.compiled_layers import Compiler
from backend.engines._torch.gpu_sampler import Traits, traits_of

if TYPE_CHECKING:
    from backend.devices._mechanisms.torch_placement import TorchPlace

COMPILED, RECORDED, SINGLY = "as a compiled graph", "as a graph", "kernel by kernel"
_CHUNKS = (32, 128, 512)  # recorded sizes of prompt chunks, in tokens; shorter chunks are padded
_CANDIDATES = (1, 64, 1024)  # recorded limits of how many tokens are sampled from; above them the full vocabulary
_FEW = 8  # up to so many prompts, graphs one after the other are faster than one pass kernel by kernel


@dataclass(frozen=True)
class Key:
    """What one recording computes: a decode step of `rows` rows, or a prompt chunk of `tokens` tokens in one row."""

    rows: int
    tokens: int
    window: int
    traits: Traits | None = None


@dataclass(frozen=True)
class Recording:
    """A recorded graph. `outputs` are the tensors that `play` fills; they are valid until the next recording plays."""

    play: Callable[[], None]
    outputs: Any


class GraphBatchModel(TorchBatchModel):
    """A batch model on a card that replays CUDA graphs. `best` is the fastest step mode that may be used."""

    def __init__(
        self,
        place: TorchPlace,
        model: Any,
        rows: int,
        context_tokens: int,
        vocabulary_size: int,
        name: str,
        best: str = COMPILED,
    ) -> None:
        """Raises ModelIncompatible for a model with an unsupported kind of attention."""
        super().__init__(place, model, rows, context_tokens, vocabulary_size, name)
        torch, device = self._torch, self._device
        self._sizes = sorted({min(2**power, rows) for power in range(rows.bit_length() + 1)})
        self._active = torch.zeros((rows, 1), dtype=torch.int64, device=device)
        self._active_count = 0
        self._compiles = False  # steps are queued for compilation once the model is verified
        self._chunk_input = torch.zeros((_CHUNKS[-1] + 3,), dtype=torch.int64, device=device)  # ids, row, start, last
        self._recordings: dict[tuple[Key, bool], Recording] = {}
        self._ready: set[tuple[Key, bool]] = set()  # ran kernel by kernel, so all kernels are loaded
        self._pool: Any = None
        self._host_buffers: dict[int, list[Any]] = {}  # pinned memory by width, two each, used alternately
        self._why_singly = None if best != SINGLY else "disabled by request"
        self.compiler = Compiler(torch, self._cache, self._layers, best == COMPILED)

    def verify_incremental(self, ids: list[int]) -> None:
        """Verify the model as the base class does, and again with compiled layers; then record the most usual steps."""
        super().verify_incremental(ids)
        self.compiler.install(self._model, lambda: super(GraphBatchModel, self).verify_incremental(ids))
        greedy = Traits(greedy=True, biased=False, penalised=False, candidates=1, logprobs=None)
        self._lengths.fill_(0)
        with self._torch.no_grad():
            for _ in range(2):  # the first run warms up, the second records
                for rows in self._sizes:
                    for traits in (greedy, replace(greedy, greedy=False, candidates=_CANDIDATES[1])):
                        self._replay_step(rows, 1, traits)
                for size in _CHUNKS[:2]:
                    self._replay_chunk(size, self._window(size))
        self._compiles = True
        self.compiler.ask(1, self._window(1))

    def start_decode(self, sequences: Sequence[TextSequence]) -> Callable[[], list[SampledToken]]:
        """Start a decode step; return a function that waits for the next tokens."""
        torch, sequences = self._torch, list(sequences)
        traits = traits_of([sequence.options for sequence in sequences], self._vocabulary_size)
        limit = next((size for size in _CANDIDATES if size >= traits.candidates > 0), 0)
        traits = replace(traits, candidates=limit)
        with torch.no_grad():
            if len(sequences) != self._active_count:
                self._active_count = len(sequences)
                self._active[: len(sequences)] = 1
                self._active[len(sequences) :] = 0
            outputs, mode = self._replay_step(
                len(sequences), max(sequence.length for sequence in sequences) + 1, traits
            )
            event, host = self._copy_to_host(outputs)
        for sequence in sequences:
            sequence.step_modes[mode] += 1

        def wait() -> list[SampledToken]:
            event.synchronize()
            return to_sampled_tokens(host[: len(sequences)].tolist(), sequences, traits)

        return wait

    def decode(self, sequences: Sequence[TextSequence]) -> list[SampledToken]:
        """Run one decode step; return the next token of each sequence."""
        return self.start_decode(sequences)()

    def prefill(self, row: int, sequence: TextSequence, ids: list[int], last: bool) -> SampledToken | None:
        """Prefill a chunk of a prompt, padded to a recorded size. Padding is overwritten later."""
        size = next((size for size in _CHUNKS if len(ids) <= size <= self._context - sequence.length), None)
        if size is None or self._why_singly:
            return super().prefill(row, sequence, ids, last)
        torch = self._torch
        with torch.no_grad():
            filled = [*ids, *[0] * (_CHUNKS[-1] - len(ids)), row, sequence.length, len(ids) - 1]
            self._chunk_input.copy_(torch.tensor(filled, dtype=torch.int64))
            logits = self._replay_chunk(size, self._window(sequence.length + size))
            self._lengths[row] = sequence.length + len(ids)
            return self._sample(row, logits, [sequence])[0] if last else None

    def prefill_batch(self, first: int, sequences: Sequence[TextSequence]) -> list[SampledToken]:
        """Prefill several complete prompts; a few of them one after the other as graphs."""
        if (
            len(sequences) > _FEW
            or max(len(sequence.prompt) for sequence in sequences) > _CHUNKS[-1]
            or self._why_singly
        ):
            return super().prefill_batch(first, sequences)
        tokens = [
            self.prefill(first + offset, sequence, sequence.prompt, True) for offset, sequence in enumerate(sequences)
        ]
        return [token for token in tokens if token is not None]

    def describe_steps(self, step_modes: Mapping[str, int]) -> str:
        """Return a sentence on how a sequence's steps were computed, and what prevented a faster mode."""
        if not step_modes:
            return ""
        counted = ", ".join(
            f"{step_modes[mode]} {mode}" for mode in (COMPILED, RECORDED, SINGLY) if step_modes.get(mode)
        )
        why = self._why_singly and f" No step is recorded: {self._why_singly}."
        return f"Steps: {counted}.{why or self.compiler.describe(COMPILED in step_modes)}"

    def _window(self, tokens: int) -> int:
        if self._why_singly:
            return super()._window(tokens)
        window = self._grain
        while window < tokens:
            window *= 2
        return min(window, self._context)

    def _replay_step(self, count: int, tokens: int, traits: Traits) -> tuple[Any, str]:
        """Run a step of rows 0 to `count`; return the sampler's output and the step mode.

        `tokens` is the length of the longest row after the step.
        """
        rows = next(size for size in self._sizes if size >= count)
        key = Key(rows, 1, self._window(tokens), traits)

        def work() -> Any:
            positions = self._lengths[:rows].clamp(max=self._context - 1)  # padding rows may hold any length
            place = Place(0, rows, key.window, self._numbers[:rows], positions)
            return self._step(rows, place, traits, self._active[:rows])

        return self._play(key, work)

    def _replay_chunk(self, size: int, window: int) -> Any:
        """Prefill the chunk in `_chunk_input`; return the logits (1, vocabulary) of its last token."""

        def work() -> Any:
            chunk_input = self._chunk_input
            row, begin, last = (chunk_input[_CHUNKS[-1] + number :][:1] for number in range(3))
            positions = begin[:, None] + self._torch.arange(size, device=self._device)
            return self._forward(chunk_input[:size][None], Place(None, 1, window, row[:, None], positions), last=last)

        return self._play(Key(1, size, window), work)[0]

    def _play(self, key: Key, work: Callable[[], Any]) -> tuple[Any, str]:
        """Run `work` in the fastest mode that is ready, and prepare a faster one."""
        for compiled in (True, False):
            if compiled and not (key.traits and self.compiler.has(key.rows, key.window)):
                continue
            if recording := self._recordings.get((key, compiled)) or self._record(key, compiled, work):
                recording.play()
                if self._compiles and key.traits and not compiled:
                    self.compiler.ask(key.rows, key.window)
                return recording.outputs, COMPILED if compiled else RECORDED
            if compiled and (key, compiled) not in self._ready and (outputs := self._warm_up(key, work)) is not None:
                return outputs, COMPILED
        self._ready.add((key, False))
        with self.compiler.watching(key.rows, key.window if key.traits else 0):
            return work(), SINGLY

    def _warm_up(self, key: Key, work: Callable[[], Any]) -> Any:
        """Run `work` once kernel by kernel with the compiled layers. Returns None if that fails."""
        with self.compiler.using() as usable:
            if not usable:
                return None
            try:
                outputs = work()
            except Exception as error:  # noqa: BLE001 (a compiler may raise anything; there is another way)
                self.compiler.give_up(error)
                return None
        self._ready.add((key, True))
        return outputs

    def _record(self, key: Key, compiled: bool, work: Callable[[], Any]) -> Recording | None:
        """Record `work` without running it, if it was warmed up and nothing is being compiled now."""
        if (key, compiled) not in self._ready or self._why_singly:
            return None
        with self.compiler.using(compiled) as usable:
            if not usable:
                return None
            try:
                self._pool, recording = record_graph(self._torch, work, self._pool)
            except Exception as error:  # noqa: BLE001 (what a model does that no recording can hold)
                if compiled:
                    self.compiler.give_up(error)
                else:
                    self._why_singly = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                return None
        self._recordings[key, compiled] = recording
        return recording

    def _copy_to_host(self, outputs: Any) -> tuple[Any, Any]:
        """Copy a tensor to the host: return an event to wait for and its target, which is reused two steps later."""
        cuda, width = self._torch.cuda, outputs.shape[1]
        if width not in self._host_buffers:
            size = (len(self._numbers), width)
            self._host_buffers[width] = [
                (cuda.Event(), self._torch.zeros(size, dtype=self._torch.float32).pin_memory()) for _ in range(2)
            ]
        event, host = self._host_buffers[width].pop(0)
        self._host_buffers[width].append((event, host))
        host[: outputs.shape[0]].copy_(outputs, non_blocking=True)
        event.record()
        return event, host


def record_graph(torch: Any, work: Callable[[], Any], pool: Any) -> tuple[Any, Recording]:
    """Record a CUDA graph of `work` without running it; return the memory pool to share, and the recording."""
    pool = pool or torch.cuda.graph_pool_handle()
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            outputs = work()
    except Exception:
        torch.cuda.set_stream(stream)  # after a failed capture torch stays on the capture's stream
        torch.cuda.synchronize()
        raise
    return pool, Recording(graph.replay, outputs)
