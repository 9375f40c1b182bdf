"""Rendering of a score to audio files: play the parts, pan and mix them, add reverb, limit, write in blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backend.tasks.audio.files.tags import Tags
from backend.tasks.audio.files.writer import SoundFiles
from backend.tasks.audio.progress import Cancelled
from backend.tasks.music.limiter import Limiter
from backend.tasks.music.note_player import RATE, Sampler
from backend.tasks.music.reverb import Reverb
from backend.tasks.music.score import Part, Score

Samples = NDArray[np.float32]
# The progress callback: takes the number of finished blocks and the total, returns True to cancel.
OnBlock = Callable[[int, int], bool]

BLOCK = 32_768
RING_OUT_S = 2.0
_MIN_FADE_S, _MAX_FADE_S = 0.3, 1.0
# For each part: level, pan position from left (-1) to right (1), and reverb send level.
_PART_MIX: dict[str, tuple[float, float, float]] = {
    "melody": (1.0, -0.12, 0.30),
    "chords": (0.62, 0.38, 0.26),
    "bass": (0.85, 0.05, 0.08),
}
_MASTER_GAIN = 2.9


def write_audio(score: Score, targets: list[tuple[Path, str]], seconds: float | None, on_block: OnBlock) -> int:
    """Write the score to each (path, format), 16 bits, stereo, 44.1 kHz. Returns the number of frames.

    `seconds` is optional: the exact duration of the files, to the nearest sample. Raises Cancelled, ValueError if the
    music is longer than `seconds`, and soundfile.SoundFileError if a file cannot be written.
    """
    frames = length_frames(score, seconds)
    blocks = -(-frames // BLOCK)
    with SoundFiles(targets, RATE, 2, Tags(score.title, score.credits)) as files:
        left = frames
        for number, block in enumerate(stereo_blocks(score, frames), 1):
            files.write(block[:, :left])
            left -= min(left, BLOCK)
            if on_block(number, blocks):
                raise Cancelled
    return frames


def length_frames(score: Score, seconds: float | None) -> int:
    """Return the number of frames of the audio. Raises ValueError if the music is longer than `seconds`."""
    music = round(score.seconds * RATE)
    if seconds is None:
        return music + round(RING_OUT_S * RATE)
    if round(seconds * RATE) < music:
        raise ValueError(f"{score.seconds:.2f} s of music do not fit into {seconds:g} s")
    return round(seconds * RATE)


def stereo_blocks(score: Score, frames: int) -> Iterator[Samples]:
    """Yield the audio in blocks [2, BLOCK] of float32 from -1 to 1. The last block is padded with silence."""
    blocks = -(-frames // BLOCK)
    players = [_PartPlayer(part, score.seconds_per_tick) for part in score.parts]
    reverb, limiter = Reverb(RATE, BLOCK), Limiter(BLOCK)
    fade = _fade(score, frames)
    for number in range(blocks + 1):
        mix = np.zeros((2, BLOCK), np.float32)
        if number < blocks:
            send = np.zeros(BLOCK, np.float32)
            for player in players:
                level, pan, room = _PART_MIX.get(player.name, _PART_MIX["chords"])
                mono = player.block(number * BLOCK)
                angle = (pan + 1) * np.pi / 4
                mix += (
                    mono * np.array([[np.cos(angle)], [np.sin(angle)]], np.float32) * np.float32(level * _MASTER_GAIN)
                )
                send += mono * np.float32(level * room * _MASTER_GAIN)
            mix += reverb.process(send)
            fade(mix, number * BLOCK)
        limited = limiter.process(mix)
        if number:
            yield limited


class _PartPlayer:
    """Renders one part block by block. Notes that continue in the next block are carried over."""

    def __init__(self, part: Part, seconds_per_tick: float) -> None:
        self.name = part.name
        self._notes = sorted(
            (round(note.start * seconds_per_tick * RATE), note.pitch, note.ticks, note.velocity) for note in part.notes
        )
        self._instrument = part.instrument
        self._seconds_per_tick = seconds_per_tick
        self._next = 0
        self._ringing: list[tuple[int, float, Samples]] = []

    def block(self, start: int) -> Samples:
        """Return the [BLOCK] mono samples from frame `start` on."""
        while self._next < len(self._notes) and self._notes[self._next][0] < start + BLOCK:
            start_frame, pitch, ticks, velocity = self._notes[self._next]
            frames = round(ticks * self._seconds_per_tick * RATE)
            gain = (velocity / 127) ** 2
            self._ringing.append((start_frame, gain, sampler().note(self._instrument, pitch, frames)))
            self._next += 1
        out = np.zeros(BLOCK, np.float32)
        for start_frame, gain, note in self._ringing:
            first, last = max(start_frame, start), min(start_frame + len(note), start + BLOCK)
            out[first - start : last - start] += note[first - start_frame : last - start_frame] * np.float32(gain)
        self._ringing = [ringing for ringing in self._ringing if ringing[0] + len(ringing[2]) > start + BLOCK]
        return out


@lru_cache(maxsize=1)
def sampler() -> Sampler:
    """Return the sampler of this process; jobs share its cache."""
    return Sampler()


def _fade(score: Score, frames: int) -> Callable[[Samples, int], None]:
    """Return a function that fades the end of the file to silence: over the ring-out, or else the last note."""
    ring_out = frames - round(score.seconds * RATE)
    length = int(min(max(ring_out, _MIN_FADE_S * RATE), _MAX_FADE_S * RATE, frames))

    def apply(mix: Samples, start: int) -> None:
        if start + BLOCK > frames - length:
            remaining = (frames - start - 1 - np.arange(BLOCK)) / length
            mix *= (0.5 - 0.5 * np.cos(np.pi * np.clip(remaining, 0, 1))).astype(np.float32)

    return apply
