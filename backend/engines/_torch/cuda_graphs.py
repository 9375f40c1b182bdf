"""Steps of a model that are recorded once and then played: for each number of rows and each window one CUDA graph.

A step of a small model is some hundred kernels of a few microseconds each, which Python begins far more slowly than a
card ends them. A graph begins all of them at once, sampling among them. Numbers of rows are powers of two, filled up
with rows that write nothing; windows double. What comes for the first time runs one by one, and so warms what a
recording must find ready; what comes again is recorded. A step that was compiled meanwhile takes the other's place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from backend.engines._text.batch_decoder import Drawn, Text
from backend.engines._text.kv_cache import Place
from backend.engines._torch.batch_model import TorchRows, drawn
from backend.engines._torch.compiled_layers import Compiler
from backend.engines._torch.gpu_sampler import Traits, traits_of

if TYPE_CHECKING:
    from backend.devices._mechanisms.torch_placement import TorchPlace

COMPILED, RECORDED, SINGLY = "as a compiled graph", "as a graph", "kernel by kernel"
_CHUNKS = (32, 128, 512)  # tokens of a prompt that are recorded, filled up at their end
_CANDIDATES = (1, 64, 1024)  # of how many tokens at most one is drawn; above it is all
_FEW = 8  # prompts that are sooner read one after the other as graphs than all at once kernel by kernel


@dataclass(frozen=True)
class Key:
    """What one recording does: a step of `rows` rows, or a chunk of a prompt of `tokens` in one row."""

    rows: int
    tokens: int
    window: int
    traits: Traits | None = None


@dataclass(frozen=True)
class Recording:
    """`found` are the tensors that `play` fills; they hold until the next recording plays."""

    play: Callable[[], None]
    found: Any


class GraphRows(TorchRows):
    """Rows on a card that plays recordings. `best` is the highest of the ways that is used."""

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
        """Raises ModelIncompatible for a model whose kind of attention is not known here."""
        super().__init__(place, model, rows, context_tokens, vocabulary_size, name)
        torch, device = self._torch, self._device
        self._sizes = sorted({min(2**power, rows) for power in range(rows.bit_length() + 1)})
        self._writing = torch.zeros((rows, 1), dtype=torch.int64, device=device)
        self._writers = 0
        self._asks = False  # for compiled steps: not before all is ready
        self._orders = torch.zeros((_CHUNKS[-1] + 3,), dtype=torch.int64, device=device)  # ids, row, place, last
        self._recordings: dict[tuple[Key, bool], Recording] = {}
        self._ready: set[tuple[Key, bool]] = set()  # ran one by one, so all of it is loaded
        self._pool: Any = None
        self._landings: dict[int, list[Any]] = {}  # pinned memory by width, two each, to be used in turn
        self._why_singly = None if best != SINGLY else "this was asked for"
        self.compiler = Compiler(torch, self._cache, self._layers, best == COMPILED)

    def try_out(self, ids: list[int]) -> None:
        """As for all rows, and again with the layers as they are compiled; then the most usual steps are recorded."""
        super().try_out(ids)
        self.compiler.install(self._model, lambda: super(GraphRows, self).try_out(ids))
        greedy = Traits(greedy=True, biased=False, penalised=False, candidates=1, logprobs=None)
        self._lengths.fill_(0)
        with self._torch.no_grad():
            for _ in range(2):  # the first time warms, the second records
                for rows in self._sizes:
                    for traits in (greedy, replace(greedy, greedy=False, candidates=_CANDIDATES[1])):
                        self._stepped(rows, 1, traits)
                for size in _CHUNKS[:2]:
                    self._read_chunk(size, self._window(size))
        self._asks = True
        self.compiler.ask(1, self._window(1))

    def start(self, texts: Sequence[Text]) -> Callable[[], list[Drawn]]:
        """Begins the next token of each; what it gives waits for them."""
        torch, texts = self._torch, list(texts)
        traits = traits_of([text.options for text in texts], self._vocabulary_size)
        limit = next((one for one in _CANDIDATES if one >= traits.candidates > 0), 0)
        traits = replace(traits, candidates=limit)
        with torch.no_grad():
            if len(texts) != self._writers:
                self._writers = len(texts)
                self._writing[: len(texts)] = 1
                self._writing[len(texts) :] = 0
            told, way = self._stepped(len(texts), max(text.length for text in texts) + 1, traits)
            landed, here = self._landed(told)
        for text in texts:
            text.ways[way] += 1

        def wait() -> list[Drawn]:
            landed.synchronize()
            return drawn(here[: len(texts)].tolist(), texts, traits)

        return wait

    def write(self, texts: Sequence[Text]) -> list[Drawn]:
        """The next token of each."""
        return self.start(texts)()

    def read(self, row: int, text: Text, ids: list[int], last: bool) -> Drawn | None:
        """A chunk of a prompt, filled up at its end where it is recorded: what stands there is written over later."""
        size = next((size for size in _CHUNKS if len(ids) <= size <= self._context - text.length), None)
        if size is None or self._why_singly:
            return super().read(row, text, ids, last)
        torch = self._torch
        with torch.no_grad():
            filled = [*ids, *[0] * (_CHUNKS[-1] - len(ids)), row, text.length, len(ids) - 1]
            self._orders.copy_(torch.tensor(filled, dtype=torch.int64))
            logits = self._read_chunk(size, self._window(text.length + size))
            self._lengths[row] = text.length + len(ids)
            return self._drawn(row, logits, [text])[0] if last else None

    def read_together(self, first: int, texts: Sequence[Text]) -> list[Drawn]:
        """Whole prompts: a few of them one after the other."""
        if len(texts) > _FEW or max(len(text.prompt) for text in texts) > _CHUNKS[-1] or self._why_singly:
            return super().read_together(first, texts)
        read = [self.read(first + number, text, text.prompt, True) for number, text in enumerate(texts)]
        return [one for one in read if one is not None]

    def said(self, ways: Mapping[str, int]) -> str:
        """How a text's steps were computed, and what stood against a better way."""
        if not ways:
            return ""
        counted = ", ".join(f"{ways[way]} {way}" for way in (COMPILED, RECORDED, SINGLY) if ways.get(way))
        why = self._why_singly and f" No step is recorded: {self._why_singly}."
        return f"Steps: {counted}.{why or self.compiler.said(COMPILED in ways)}"

    def _window(self, tokens: int) -> int:
        if self._why_singly:
            return super()._window(tokens)
        window = self._grain
        while window < tokens:
            window *= 2
        return min(window, self._context)

    def _stepped(self, count: int, tokens: int, traits: Traits) -> tuple[Any, str]:
        """A step of rows 0 to `count`, the longest with `tokens` after it; what is told, and the way."""
        rows = next(size for size in self._sizes if size >= count)
        key = Key(rows, 1, self._window(tokens), traits)

        def work() -> Any:
            positions = self._lengths[:rows].clamp(max=self._context - 1)  # of rows that write nothing, anything
            place = Place(0, rows, key.window, self._numbers[:rows], positions)
            return self._step(rows, place, traits, self._writing[:rows])

        return self._play(key, work)

    def _read_chunk(self, size: int, window: int) -> Any:
        """The chunk that `_orders` tells; logits (1, vocabulary) of its last token."""

        def work() -> Any:
            orders = self._orders
            row, begin, last = (orders[_CHUNKS[-1] + number :][:1] for number in range(3))
            positions = begin[:, None] + self._torch.arange(size, device=self._device)
            return self._forward(orders[:size][None], Place(None, 1, window, row[:, None], positions), last=last)

        return self._play(Key(1, size, window), work)[0]

    def _play(self, key: Key, work: Callable[[], Any]) -> tuple[Any, str]:
        """Does the work in the best way that there is now, and gets a better one ready."""
        for compiled in (True, False):
            if compiled and not (key.traits and self.compiler.has(key.rows, key.window)):
                continue
            if recording := self._recordings.get((key, compiled)) or self._recorded(key, compiled, work):
                recording.play()
                if self._asks and key.traits and not compiled:
                    self.compiler.ask(key.rows, key.window)
                return recording.found, COMPILED if compiled else RECORDED
            if compiled and (key, compiled) not in self._ready and (found := self._warmed(key, work)) is not None:
                return found, COMPILED
        self._ready.add((key, False))
        with self.compiler.watching(key.rows, key.window if key.traits else 0):
            return work(), SINGLY

    def _warmed(self, key: Key, work: Callable[[], Any]) -> Any:
        """Does it once with the compiled layers, one by one, or None where that fails."""
        with self.compiler.using() as usable:
            if not usable:
                return None
            try:
                found = work()
            except Exception as error:  # noqa: BLE001 (a compiler may raise anything; there is another way)
                self.compiler.give_up(error)
                return None
        self._ready.add((key, True))
        return found

    def _recorded(self, key: Key, compiled: bool, work: Callable[[], Any]) -> Recording | None:
        """Records the work without doing it, if it was warmed and nothing is being compiled just now."""
        if (key, compiled) not in self._ready or self._why_singly:
            return None
        with self.compiler.using(compiled) as usable:
            if not usable:
                return None
            try:
                made = record(self._torch, work, self._pool)
            except Exception as error:  # noqa: BLE001 (what a model does that no recording can hold)
                if compiled:
                    self.compiler.give_up(error)
                else:
                    self._why_singly = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                return None
        self._pool = made[0]
        self._recordings[key, compiled] = made[1]
        return made[1]

    def _landed(self, told: Any) -> tuple[Any, Any]:
        """Sends it to the host: an event to wait for, and where it will be, until the step after the next."""
        cuda, width = self._torch.cuda, told.shape[1]
        if width not in self._landings:
            size = (len(self._numbers), width)
            self._landings[width] = [
                (cuda.Event(), self._torch.zeros(size, dtype=self._torch.float32).pin_memory()) for _ in range(2)
            ]
        event, here = self._landings[width].pop(0)
        self._landings[width].append((event, here))
        here[: told.shape[0]].copy_(told, non_blocking=True)
        event.record()
        return event, here


def record(torch: Any, work: Callable[[], Any], pool: Any) -> tuple[Any, Recording]:
    """A CUDA graph of the work, which is not done; with the memory that it shares with those of the same pool."""
    pool = pool or torch.cuda.graph_pool_handle()
    graph = torch.cuda.CUDAGraph()
    before = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            found = work()
    except Exception:
        torch.cuda.set_stream(before)  # torch stays on the recording's own stream where that could not be ended
        torch.cuda.synchronize()
        raise
    return pool, Recording(graph.replay, found)
