"""The arguments of each pipeline of diffusers for a song: one request, in the terms of each pipeline.

Read from diffusers 0.42.1. Every pipeline gets one random generator per song, on the CPU, so that a seed gives the same
noise on every device and in every batch. Lengths are requested in complete latent frames, which no pipeline shortens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backend.tasks.songs.job import SongRequest

Arguments = dict[str, Any]  # keyword arguments of a pipeline, or tensors by name: the library has no types for them
# A callback after each denoising step, with its number from 0.
OnStep = Callable[[int], None]


class Call:
    """One kind of pipeline: its audio format, and its arguments for a request."""

    denoiser = "transformer"
    decoder = "vae"
    length = "audio_duration"

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe

    @property
    def rate(self) -> int:
        """Samples per second."""
        return int(self.pipe.sample_rate)

    @property
    def channels(self) -> int:
        """The number of audio channels."""
        return int(self.pipe.vae.config.audio_channels)

    def seconds(self, frames: int) -> float:
        """Return the length to request for at least so many samples."""
        return frames / self.rate

    def arguments(self, request: SongRequest, seeds: list[int], generators: list[Any], on_step: OnStep) -> Arguments:
        """Return all arguments of the pipeline."""
        options, count = request.options, len(seeds)

        def on_step_end(pipe: Any, step: int, time: Any, tensors: Arguments) -> Arguments:
            on_step(step)
            return tensors

        return {
            "prompt": [request.prompt] * count,
            self.length: self.seconds(request.frames),
            "num_inference_steps": options["steps"],
            "guidance_scale": 1.0 if options["guidance_scale"] is None else options["guidance_scale"],
            "generator": generators,
            "output_type": "pt",
            "callback_on_step_end": on_step_end,
            **self.text_arguments(options, count),
        }

    def text_arguments(self, options: Any, count: int) -> Arguments:
        """Return the text arguments beyond the description."""
        negative = options["negative_prompt"]
        return {"negative_prompt": [negative] * count} if negative else {}


class AceStep(Call):
    """Lyrics; and tempo, key and metre as its training data has them."""

    def text_arguments(self, options: Any, count: int) -> Arguments:
        """Return lyrics and musical properties in the pipeline's format."""
        meter = options["meter"]
        return {
            "lyrics": [options["lyrics"] or ""] * count,
            "vocal_language": [options["language"] or "en"] * count,
            "bpm": options["tempo_bpm"],
            "keyscale": options["key"],
            "timesignature": meter.partition("/")[0] if meter else None,
        }


class StableAudio(Call):
    """It reports steps through an older callback, and generates audio of fixed length, which it cuts."""

    length = "audio_end_in_s"

    @property
    def rate(self) -> int:
        """Samples per second."""
        return int(self.pipe.vae.config.sampling_rate)

    def seconds(self, frames: int) -> float:
        """Return the length including the last sample, because the pipeline rounds down."""
        longest = self.pipe.transformer.config.sample_size * self.pipe.vae.hop_length / self.rate
        return float(min((frames + 0.5) / self.rate, longest))

    def arguments(self, request: SongRequest, seeds: list[int], generators: list[Any], on_step: OnStep) -> Arguments:
        """Return the arguments with the older callback."""
        arguments = super().arguments(request, seeds, generators, on_step)
        del arguments["callback_on_step_end"]
        return {**arguments, "callback": lambda step, time, latents: on_step(step), "callback_steps": 1}


class StableAudio3(Call):
    """It rounds lengths down."""

    length = "duration"

    @property
    def rate(self) -> int:
        """Samples per second."""
        return int(self.pipe.vae.config.sampling_rate)

    def seconds(self, frames: int) -> float:
        """Return the length including the last sample, because the pipeline rounds down."""
        return (frames + 0.5) / self.rate


class AudioLdm2(StableAudio):
    """Spectrograms, which a vocoder converts to one channel of audio."""

    denoiser = "unet"
    length = "audio_length_in_s"

    @property
    def channels(self) -> int:
        """The number of audio channels."""
        return 1

    @property
    def rate(self) -> int:
        """Samples per second."""
        return int(self.pipe.vocoder.config.sampling_rate)

    def seconds(self, frames: int) -> float:
        """Return complete columns of the latent, plus half a column because the pipeline rounds down."""
        column = math.prod(self.pipe.vocoder.config.upsample_rates)
        hop = column * self.pipe.vae_scale_factor
        return float((math.ceil(frames / hop) * hop + column / 2) / self.rate)


class LongCat(Call):
    """One channel. It counts complete latent frames and drops the rest of the requested length."""

    length = "audio_duration_s"

    def __init__(self, pipe: Any) -> None:
        super().__init__(pipe)
        pipe.max_wav_duration += pipe.vae_scale_factor / pipe.sample_rate  # so that its last second is complete

    @property
    def channels(self) -> int:
        """The number of audio channels."""
        return 1

    def seconds(self, frames: int) -> float:
        """Return complete latent frames, plus half a frame."""
        hop = int(self.pipe.vae_scale_factor)
        return (math.ceil(frames / hop) + 0.5) * hop / self.rate


CALLS: dict[str, type[Call]] = {
    "AceStepPipeline": AceStep,
    "StableAudioPipeline": StableAudio,
    "StableAudio3Pipeline": StableAudio3,
    "AudioLDM2Pipeline": AudioLdm2,
    "LongCatAudioDiTPipeline": LongCat,
}
