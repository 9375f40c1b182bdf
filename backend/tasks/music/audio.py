"""From a score to audio files: parts played, put in their places in a room, limited, written in blocks."""

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
# Called with blocks done and in all; True means: stop now.
OnBlock = Callable[[int, int], bool]

BLOCK = 32_768
RING_OUT_S = 2.0
_SHORTEST_FADE_S, _LONGEST_FADE_S = 0.3, 1.0
# For each part by name: its level, its place from left (-1) to right (1), and how much of it the room gets.
_PLACES: dict[str, tuple[float, float, float]] = {
    "melody": (1.0, -0.12, 0.30),
    "chords": (0.62, 0.38, 0.26),
    "bass": (0.85, 0.05, 0.08),
}
_MASTER = 2.9


def write(score: Score, targets: list[tuple[Path, str]], seconds: float | None, on_block: OnBlock) -> int:
    """Writes the score to each (path, kind of sound file), 16 bits, stereo, 44.1 kHz; returns the frames written.

    With `seconds`, the files last exactly that long, to the nearest sample. Raises Stopped, ValueError if the music is
    longer than `seconds`, and soundfile.SoundFileError, which gives no reason, where a file cannot be written.
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
    """Frames of the audio. Raises ValueError if the music is longer than `seconds`."""
    music = round(score.seconds * RATE)
    if seconds is None:
        return music + round(RING_OUT_S * RATE)
    if round(seconds * RATE) < music:
        raise ValueError(f"{score.seconds:.2f} s of music do not fit into {seconds:g} s")
    return round(seconds * RATE)


def stereo_blocks(score: Score, frames: int) -> Iterator[Samples]:
    """The audio as blocks of [2, BLOCK] float32 within -1 and 1; the last one goes on in silence."""
    blocks = -(-frames // BLOCK)
    players = [_Player(part, score.seconds_per_tick) for part in score.parts]
    reverb, limiter = Reverb(RATE, BLOCK), Limiter(BLOCK)
    fade = _fade(score, frames)
    for number in range(blocks + 1):
        mix = np.zeros((2, BLOCK), np.float32)
        if number < blocks:
            send = np.zeros(BLOCK, np.float32)
            for player in players:
                level, place, room = _PLACES.get(player.name, _PLACES["chords"])
                mono = player.block(number * BLOCK)
                angle = (place + 1) * np.pi / 4
                mix += mono * np.array([[np.cos(angle)], [np.sin(angle)]], np.float32) * np.float32(level * _MASTER)
                send += mono * np.float32(level * room * _MASTER)
            mix += reverb.process(send)
            fade(mix, number * BLOCK)
        limited = limiter.process(mix)
        if number:
            yield limited


class _Player:
    """One part's notes, block after block; a note that rings on is carried over."""

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
        """[BLOCK] samples from `start` on."""
        while self._next < len(self._notes) and self._notes[self._next][0] < start + BLOCK:
            at, pitch, ticks, velocity = self._notes[self._next]
            frames = round(ticks * self._seconds_per_tick * RATE)
            gain = (velocity / 127) ** 2
            self._ringing.append((at, gain, sampler().note(self._instrument, pitch, frames)))
            self._next += 1
        out = np.zeros(BLOCK, np.float32)
        for at, gain, note in self._ringing:
            first, last = max(at, start), min(at + len(note), start + BLOCK)
            out[first - start : last - start] += note[first - at : last - at] * np.float32(gain)
        self._ringing = [ringing for ringing in self._ringing if ringing[0] + len(ringing[2]) > start + BLOCK]
        return out


@lru_cache(maxsize=1)
def sampler() -> Sampler:
    """The one of this process, so that jobs share what was computed."""
    return Sampler()


def _fade(score: Score, frames: int) -> Callable[[Samples, int], None]:
    """Lets the end of the file fall to silence, over the ring-out, or within the last note if there is none."""
    over = frames - round(score.seconds * RATE)
    length = int(min(max(over, _SHORTEST_FADE_S * RATE), _LONGEST_FADE_S * RATE, frames))

    def apply(mix: Samples, start: int) -> None:
        if start + BLOCK > frames - length:
            left = (frames - start - 1 - np.arange(BLOCK)) / length
            mix *= (0.5 - 0.5 * np.cos(np.pi * np.clip(left, 0, 1))).astype(np.float32)

    return apply
