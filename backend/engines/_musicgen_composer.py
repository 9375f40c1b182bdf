"""A MusicGen of transformers as a composer: several songs in a batch, progress and cancel at each step of tokens."""

from __future__ import annotations

import gc
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend import faults
from backend.engines._memory import within_free_memory
from backend.engines._musicgen_choice import Choice, each_step, guided_first
from backend.engines._musicgen_melody import chroma, heard
from backend.engines._song_room import Room
from backend.errors import OutOfMemory
from backend.machine import memory_free_bytes

if TYPE_CHECKING:
    from backend.devices._torch_place import TorchPlace
    from backend.songs.making import Floats, Tell, Wish

ENCODE, GENERATE, DECODE = "encode", "generate", "decode"
_MOST = 16
_KEPT_SHARE = 0.7  # of the free memory, for songs at once before any was measured
_DECODER_NUMBERS = 400  # that EnCodec's decoder holds at once for each sample, by the layers of its usual sizes


class MusicgenComposer:
    """A loaded model; `text` turns words into tokens."""

    def __init__(self, model: Any, text: Any, place: TorchPlace, room: Room, folder: Path) -> None:
        self._model, self._text, self._place, self._room, self._folder = model, text, place, room, folder
        audio, decoder = model.config.audio_encoder, model.config.decoder
        self.rate = int(audio.sampling_rate)
        self.channels = int(decoder.audio_channels)
        self._codebooks = int(decoder.num_codebooks) // self.channels
        self._samples = math.prod(audio.upsampling_ratios)  # of a token
        self._numbers = 2 * int(decoder.num_hidden_layers) * int(decoder.hidden_size)  # a token's keys and values
        self._most = _MOST
        self._bytes_a_second: float | None = None
        self._peak: int | None = None

    def together(self, wish: Wish) -> int:
        """As many as fit into the memory that is free, by what the last took or else by reckoning."""
        free = self._free_bytes()
        if free is None:
            return self._most
        needed = self._bytes_of(wish)
        return max(1, min(self._most, int(_KEPT_SHARE * free / needed)))

    def compose(self, wish: Wish, seeds: list[int], tell: Tell) -> Floats:
        """[song, channel, frame]. Raises OutOfMemory with advice, Stopped, Validation for a melody that is none."""
        torch, card = self._place.torch, self._card()
        before = self._place.allocated_bytes()
        if card is not None:
            card.reset_peak_memory_stats(self._place.device)
        try:
            with within_free_memory(self._place.is_processor):
                made = self._generated(wish, seeds, tell)
                sound = made.detach().to("cpu", torch.float32)
        except (RuntimeError, MemoryError) as error:
            if not isinstance(error, MemoryError) and faults.code_of(str(error)) != "out_of_memory":
                raise
            told = f"{type(error).__name__}: {error}".strip()[:300]
        else:
            tell(DECODE, 1, 1, "songs")
            if card is not None and before is not None:
                self._peak = int(card.max_memory_allocated(self._place.device))
                self._bytes_a_second = max(1, self._peak - before) / (len(seeds) * wish.frames / self.rate)
            return sound.reshape(len(seeds), self.channels, -1).numpy()  # type: ignore[no-any-return]
        gc.collect()  # what the failed attempt held goes before another is made
        if card is not None:
            card.empty_cache()
        self._most = max(1, len(seeds) // 2)
        raise self._advice(wish, len(seeds), told)

    def told(self) -> dict[str, Any]:
        """For the receipt."""
        measured = {} if self._peak is None else {"card_peak_bytes": self._peak}
        return {"number": self._room.number, "memory": self._room.words, **measured}

    def _generated(self, wish: Wish, seeds: list[int], tell: Tell) -> Any:
        """The library's own loop: the delay between codebooks, guidance, cache and EnCodec are its."""
        import transformers

        torch, options = self._place.torch, wish.options
        tell(ENCODE, 0, 1, "songs")
        given = self._given(wish, len(seeds))
        # Each codebook begins a step after the one before; a pattern shorter than that has no middle.
        tokens = max(math.ceil(wish.frames / self._samples), self._codebooks) + self._codebooks - 1
        tell(ENCODE, 1, 1, "songs")
        tell(GENERATE, 0, tokens, "tokens")

        def on_step(done: int) -> None:
            tell(GENERATE, done, tokens, "tokens")
            if done == tokens:
                tell(DECODE, 0, 1, "songs")

        choice = Choice(torch, options, seeds)
        guidance = options["guidance_scale"]
        return self._model.generate(
            **given,
            do_sample=False,  # the choice leaves one token
            max_new_tokens=tokens,
            guidance_scale=guidance if guidance > 1 else None,
            logits_processor=guided_first(transformers, choice),
            stopping_criteria=each_step(torch, transformers, on_step),
        )

    def _given(self, wish: Wish, count: int) -> dict[str, Any]:
        torch = self._place.torch
        words = self._text.encode(wish.prompt).ids
        ids = torch.tensor([words] * count, dtype=torch.int64).to(self._place.device)
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if melody := wish.sounds.get("melody"):
            pitches = chroma(heard(melody["path"], melody["name"], self.rate), self.rate, self._folder)
            many = torch.from_numpy(pitches)[None].repeat(count, 1, 1)
            given["input_features"] = many.to(self._place.device, self._model.dtype)
        return given

    def _card(self) -> Any:
        """torch's module for the card, where it counts what is allocated."""
        module = None if self._place.is_processor else getattr(self._place.torch, self._place.ground.type, None)
        return module if hasattr(module, "reset_peak_memory_stats") else None

    def _free_bytes(self) -> int | None:
        return memory_free_bytes() if self._place.is_processor else self._place.ground.free_bytes()

    def _bytes_of(self, wish: Wish) -> float:
        """What a song takes beside the weights."""
        if self._bytes_a_second is not None:
            return self._bytes_a_second * wish.frames / self.rate
        guided = 2 if wish.options["guidance_scale"] > 1 else 1
        item = getattr(self._place.torch, self._room.number).itemsize
        cache = guided * self._numbers * item * wish.frames / self._samples
        return float(2 * cache + _DECODER_NUMBERS * 4 * wish.frames * self.channels)

    def _advice(self, wish: Wish, songs: int, told: str) -> OutOfMemory:
        """What would fit, in numbers."""
        free, seconds, needed = self._free_bytes(), wish.frames / self.rate, self._bytes_of(wish)
        room = "" if free is None else f"; {free / 1e9:.2f} GB are free beside the model ({self._room.words})"
        fits = seconds / 2 if free is None else min(seconds / 2, _KEPT_SHARE * free / needed * seconds)
        count = "" if songs == 1 else f"{songs} songs of "
        return OutOfMemory(
            f"{count}{seconds:g} s do not fit into the memory of {self._place.id}: about {songs * needed / 1e9:.2f} GB "
            f"are needed{room}. {told}",
            f"Ask for {max(1.0, fits):.0f} s or less, one variation at a time, or choose a device with more memory.",
        )
