"""A standard MIDI file of a score, by mido: format 1, one track for tempo and metre, then one a part.

A tick of the score is `PULSES_PER_TICK` of the file's, so that no time is rounded.
"""

from __future__ import annotations

import io

import mido

from backend.tasks.music.choices import INSTRUMENTS
from backend.tasks.music.score import Melody, Part, Score
from backend.tasks.music.spelling import key_of

PULSES_PER_TICK = 20
PULSES_PER_QUARTER = 24 * PULSES_PER_TICK
_QUARTER_TICKS = 24
_DRUMS = 9


def to_bytes(score: Score) -> bytes:
    """The whole file. The melody is the first part's track, parts have channels of their own."""
    file = mido.MidiFile(type=1, ticks_per_beat=PULSES_PER_QUARTER, charset="utf-8")
    file.tracks.append(_conductor(score))
    channels = [channel for channel in range(16) if channel != _DRUMS]
    for channel, part in zip(channels, score.parts, strict=False):
        file.tracks.append(_track(part, channel, score.melody.end))
    out = io.BytesIO()
    file.save(file=out)
    return out.getvalue()


def _conductor(score: Score) -> mido.MidiTrack:
    """Title, tempo, key and metres: a pickup is a bar of its own length, so that readers put bar lines right."""
    melody = score.melody
    microseconds = round(60e6 / score.tempo_bpm * _QUARTER_TICKS / score.beat_ticks)
    events: list[tuple[int, mido.MetaMessage]] = [
        (0, mido.MetaMessage("track_name", name=score.title)),
        (0, mido.MetaMessage("set_tempo", tempo=microseconds)),
        (0, mido.MetaMessage("key_signature", key=key_of(melody.tonic, melody.mode).midi_name)),
    ]
    metre: tuple[int, int] | None = None
    for start, end in melody.measures:
        found = _metre(melody, end - start)
        if found is not None and found != metre:
            metre = found
            meta = mido.MetaMessage("time_signature", numerator=metre[0], denominator=metre[1])
            events.append((start, meta))
    return _timed(list(events), melody.end)


def _metre(melody: Melody, ticks: int) -> tuple[int, int] | None:
    """The metre of a bar of this length; None for one that no metre says, which then keeps the metre before it."""
    if ticks == melody.bar_ticks:
        return melody.meter
    for bottom in (melody.meter[1], 16, 32):
        if ticks * bottom % 96 == 0:
            return ticks * bottom // 96, bottom
    return None


def _track(part: Part, channel: int, end: int) -> mido.MidiTrack:
    events: list[tuple[int, mido.Message | mido.MetaMessage]] = [
        (0, mido.MetaMessage("track_name", name=part.name)),
        (0, mido.Message("program_change", channel=channel, program=INSTRUMENTS[part.instrument].program)),
    ]
    notes: list[tuple[int, int, mido.Message]] = []
    for note in part.notes:
        on = mido.Message("note_on", channel=channel, note=note.pitch, velocity=note.velocity)
        off = mido.Message("note_off", channel=channel, note=note.pitch, velocity=64)
        notes += [(note.start, 1, on), (note.start + note.ticks, 0, off)]
    # Ends before beginnings, so that a repeated note sounds twice.
    events += [(tick, message) for tick, _, message in sorted(notes, key=lambda event: event[:2])]
    return _timed(events, end)


def _timed(events: list[tuple[int, mido.Message | mido.MetaMessage]], end: int) -> mido.MidiTrack:
    track = mido.MidiTrack()
    now = 0
    for tick, message in events:
        message.time = (tick - now) * PULSES_PER_TICK
        track.append(message)
        now = tick
    track.append(mido.MetaMessage("end_of_track", time=max(end - now, 0) * PULSES_PER_TICK))
    return track
