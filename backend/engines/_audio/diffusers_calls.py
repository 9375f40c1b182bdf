"""How each pipeline of diffusers is called for a song: the same wish, in the words of each.

Read from diffusers 0.42.1. Every pipeline takes one generator a song, on the processor, so that a seed means the same
noise on every device and in every group. Lengths are asked for in whole latent frames, which none of them shortens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backend.tasks.songs.job import SongRequest

# Told after each step of denoising, with its number from 0.
OnStep = Callable[[int], None]


class Call:
    """One kind of pipeline: what it makes, and the arguments for a wish."""

    denoiser = "transformer"
    decoder = "vae"
    length = "audio_duration"

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe

    @property
    def rate(self) -> int:
        """Samples a second."""
        return int(self.pipe.sample_rate)

    @property
    def channels(self) -> int:
        """Of the sound that it makes."""
        return int(self.pipe.vae.config.audio_channels)

    def seconds(self, frames: int) -> float:
        """What to ask for, so that at least so many samples come."""
        return frames / self.rate

    def arguments(self, wish: SongRequest, seeds: list[int], generators: list[Any], on_step: OnStep) -> dict[str, Any]:
        """All of the pipeline's arguments."""
        options, count = wish.options, len(seeds)

        def on_step_end(pipe: Any, step: int, time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            on_step(step)
            return tensors

        return {
            "prompt": [wish.prompt] * count,
            self.length: self.seconds(wish.frames),
            "num_inference_steps": options["steps"],
            "guidance_scale": 1.0 if options["guidance_scale"] is None else options["guidance_scale"],
            "generator": generators,
            "output_type": "pt",
            "callback_on_step_end": on_step_end,
            **self.words(options, count),
        }

    def words(self, options: Any, count: int) -> dict[str, Any]:
        """Beside the description."""
        negative = options["negative_prompt"]
        return {"negative_prompt": [negative] * count} if negative else {}


class AceStep(Call):
    """Lyrics, and wishes for tempo, key and metre as its training data had them."""

    def words(self, options: Any, count: int) -> dict[str, Any]:
        """As its prompt has them."""
        meter = options["meter"]
        return {
            "lyrics": [options["lyrics"] or ""] * count,
            "vocal_language": [options["language"] or "en"] * count,
            "bpm": options["tempo_bpm"],
            "keyscale": options["key"],
            "timesignature": meter.partition("/")[0] if meter else None,
        }


class StableAudio(Call):
    """It tells its steps by an older way, and makes sound of one length, of which it cuts."""

    length = "audio_end_in_s"

    @property
    def rate(self) -> int:
        """Samples a second."""
        return int(self.pipe.vae.config.sampling_rate)

    def seconds(self, frames: int) -> float:
        """The last sample as well, for it rounds down."""
        longest = self.pipe.transformer.config.sample_size * self.pipe.vae.hop_length / self.rate
        return float(min((frames + 0.5) / self.rate, longest))

    def arguments(self, wish: SongRequest, seeds: list[int], generators: list[Any], on_step: OnStep) -> dict[str, Any]:
        """With the older way of telling steps."""
        found = super().arguments(wish, seeds, generators, on_step)
        del found["callback_on_step_end"]
        return {**found, "callback": lambda step, time, latents: on_step(step), "callback_steps": 1}


class StableAudio3(Call):
    """It rounds down as well."""

    length = "duration"

    @property
    def rate(self) -> int:
        """Samples a second."""
        return int(self.pipe.vae.config.sampling_rate)

    def seconds(self, frames: int) -> float:
        """The last sample as well, for it rounds down."""
        return (frames + 0.5) / self.rate


class AudioLdm2(StableAudio):
    """Spectrograms, which a vocoder turns into one channel of sound."""

    denoiser = "unet"
    length = "audio_length_in_s"

    @property
    def channels(self) -> int:
        """Of the sound that it makes."""
        return 1

    @property
    def rate(self) -> int:
        """Samples a second."""
        return int(self.pipe.vocoder.config.sampling_rate)

    def seconds(self, frames: int) -> float:
        """Whole columns of the latent picture; half a column of the spectrogram more, for it rounds down."""
        column = math.prod(self.pipe.vocoder.config.upsample_rates)
        hop = column * self.pipe.vae_scale_factor
        return float((math.ceil(frames / hop) * hop + column / 2) / self.rate)


class LongCat(Call):
    """One channel. It counts whole latent frames and drops the rest of what was asked for."""

    length = "audio_duration_s"

    def __init__(self, pipe: Any) -> None:
        super().__init__(pipe)
        pipe.max_wav_duration += pipe.vae_scale_factor / pipe.sample_rate  # so that its last second is whole

    @property
    def channels(self) -> int:
        """Of the sound that it makes."""
        return 1

    def seconds(self, frames: int) -> float:
        """Whole latent frames, and half a one more."""
        hop = int(self.pipe.vae_scale_factor)
        return (math.ceil(frames / hop) + 0.5) * hop / self.rate


CALLS: dict[str, type[Call]] = {
    "AceStepPipeline": AceStep,
    "StableAudioPipeline": StableAudio,
    "StableAudio3Pipeline": StableAudio3,
    "AudioLDM2Pipeline": AudioLdm2,
    "LongCatAudioDiTPipeline": LongCat,
}
