"""MusicGen of transformers as a composer: several songs in a batch; progress and cancel at each step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.common.system.resources import memory_free_bytes
from backend.engines._audio.memory_placement import MemoryPlacement
from backend.engines._audio.memory_report import SongMemory
from backend.engines._audio.musicgen_chroma import chroma, load_sound
from backend.engines._audio.musicgen_sampler import SamplingProcessor, each_step, guidance_before_sampling
from backend.engines._memory_errors import out_of_memory_message
from backend.engines._onnx.memory_limit import within_free_memory

if TYPE_CHECKING:
    from backend.devices._mechanisms.torch_placement import TorchPlace
    from backend.tasks.songs.job import Floats, ProgressCallback, SongRequest

ENCODE, GENERATE, DECODE = "encode", "generate", "decode"
_MOST = 16
_KEPT_SHARE = 0.7  # of the free memory, for a batch of songs before any was measured
_DECODER_NUMBERS = 400  # values that EnCodec's decoder holds per sample, by the layers of its usual sizes


class MusicgenComposer:
    """A loaded model. `text` is the tokenizer."""

    def __init__(
        self, model: Any, text: Any, place: TorchPlace, memory_placement: MemoryPlacement, folder: Path
    ) -> None:
        self._model, self._text, self._place, self._memory_placement, self._folder = (
            model,
            text,
            place,
            memory_placement,
            folder,
        )
        audio, decoder = model.config.audio_encoder, model.config.decoder
        self.rate = int(audio.sampling_rate)
        self.channels = int(decoder.audio_channels)
        self._codebooks = int(decoder.num_codebooks) // self.channels
        self._samples = math.prod(audio.upsampling_ratios)  # of a token
        self._numbers = 2 * int(decoder.num_hidden_layers) * int(decoder.hidden_size)  # a token's keys and values
        self._most = _MOST
        self._memory = SongMemory(place, memory_placement)

    def max_batch(self, request: SongRequest) -> int:
        """Return how many songs fit into the free memory at once, by the last song's memory or an estimate."""
        free = self._free_bytes()
        if free is None:
            return self._most
        needed = self._bytes_a_second(request) * request.frames / self.rate
        return max(1, min(self._most, int(_KEPT_SHARE * free / needed)))

    def compose(self, request: SongRequest, seeds: list[int], report: ProgressCallback) -> Floats:
        """Return [song, channel, frame]. Raises OutOfMemory, Cancelled, Validation for an invalid melody."""
        torch, seconds = self._place.torch, request.frames / self.rate
        self._memory.begin()
        try:
            with within_free_memory(self._place.is_processor):
                made = self._generated(request, seeds, report)
                sound = made.detach().to("cpu", torch.float32)
        except (RuntimeError, MemoryError) as error:
            if not (message := out_of_memory_message(error) or ""):
                raise
        else:
            report(DECODE, 1, 1, "songs")
            self._memory.end(len(seeds) * seconds)
            return sound.reshape(len(seeds), self.channels, -1).numpy()  # type: ignore[no-any-return]
        self._memory.empty()
        self._most = max(1, len(seeds) // 2)
        raise self._memory.advice(seconds, len(seeds), message, self._bytes_a_second(request), self._free_bytes())

    def receipt_values(self) -> Mapping[str, object]:
        """Return the facts for the receipt."""
        return self._memory.receipt_values()

    def _generated(self, request: SongRequest, seeds: list[int], report: ProgressCallback) -> Any:
        """Run the library's own loop: codebook delays, guidance, KV cache and EnCodec are the library's."""
        import transformers

        torch, options = self._place.torch, request.options
        report(ENCODE, 0, 1, "songs")
        given = self._given(request, len(seeds))
        # Each codebook starts one step after the previous one; a pattern must be longer than that delay.
        tokens = max(math.ceil(request.frames / self._samples), self._codebooks) + self._codebooks - 1
        report(ENCODE, 1, 1, "songs")
        report(GENERATE, 0, tokens, "tokens")

        def on_step(done: int) -> None:
            report(GENERATE, done, tokens, "tokens")
            if done == tokens:
                report(DECODE, 0, 1, "songs")

        choice = SamplingProcessor(torch, options, seeds)
        guidance = options["guidance_scale"]
        return self._model.generate(
            **given,
            do_sample=False,  # the sampler leaves one token
            max_new_tokens=tokens,
            guidance_scale=guidance if guidance > 1 else None,
            logits_processor=guidance_before_sampling(transformers, choice),
            stopping_criteria=each_step(torch, transformers, on_step),
        )

    def _given(self, request: SongRequest, count: int) -> dict[str, Any]:
        torch = self._place.torch
        words = self._text.encode(request.prompt).ids
        ids = torch.tensor([words] * count, dtype=torch.int64).to(self._place.device)
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if melody := request.sounds.get("melody"):
            pitches = chroma(load_sound(melody["path"], melody["name"], self.rate), self.rate, self._folder)
            many = torch.from_numpy(pitches)[None].repeat(count, 1, 1)
            given["input_features"] = many.to(self._place.device, self._model.dtype)
        return given

    def _free_bytes(self) -> int | None:
        return memory_free_bytes() if self._place.is_processor else self._place.access.free_bytes()

    def _bytes_a_second(self, request: SongRequest) -> float:
        """Return the memory of a song per second beyond the weights: as measured with the last song, or estimated."""
        if self._memory.bytes_a_second:
            return self._memory.bytes_a_second
        guided = 2 if request.options["guidance_scale"] > 1 else 1
        item = getattr(self._place.torch, self._memory_placement.dtype).itemsize
        cache = guided * self._numbers * item / self._samples
        return float((2 * cache + _DECODER_NUMBERS * 4 * self.channels) * self.rate)
