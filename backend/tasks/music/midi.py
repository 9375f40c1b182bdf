"""Export of a score as a standard MIDI file with mido: format 1, a conductor track, then one track per part.

A tick of the score is `PULSES_PER_TICK` MIDI ticks, so that no time is rounded.
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
    """Return the MIDI file. The melody is the first part; each part has its own channel."""
    file = mido.MidiFile(type=1, ticks_per_beat=PULSES_PER_QUARTER, charset="utf-8")
    file.tracks.append(_conductor(score))
    channels = [channel for channel in range(16) if channel != _DRUMS]
    for channel, part in zip(channels, score.parts, strict=False):
        file.tracks.append(_track(part, channel, score.melody.end))
    out = io.BytesIO()
    file.save(file=out)
    return out.getvalue()


def _conductor(score: Score) -> mido.MidiTrack:
    """Return the conductor track. A pickup gets its own time signature, so that programs place barlines correctly."""
    melody = score.melody
    microseconds = round(60e6 / score.tempo_bpm * _QUARTER_TICKS / score.beat_ticks)
    events: list[tuple[int, mido.MetaMessage]] = [
        (0, mido.MetaMessage("track_name", name=score.title)),
        (0, mido.MetaMessage("set_tempo", tempo=microseconds)),
        (0, mido.MetaMessage("key_signature", key=key_of(melody.tonic, melody.mode).midi_name)),
    ]
    current: tuple[int, int] | None = None
    for start, end in melody.measures:
        meter = _metre(melody, end - start)
        if meter is not None and meter != current:
            current = meter
            meta = mido.MetaMessage("time_signature", numerator=current[0], denominator=current[1])
            events.append((start, meta))
    return _to_track(list(events), melody.end)


def _metre(melody: Melody, ticks: int) -> tuple[int, int] | None:
    """Return the time signature of a bar of this length; None if there is none, which keeps the previous one."""
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
    # Note-offs sort before note-ons, so that a repeated note is retriggered.
    events += [(tick, message) for tick, _, message in sorted(notes, key=lambda event: event[:2])]
    return _to_track(events, end)


def _to_track(events: list[tuple[int, mido.Message | mido.MetaMessage]], end: int) -> mido.MidiTrack:
    track = mido.MidiTrack()
    now = 0
    for tick, message in events:
        message.time = (tick - now) * PULSES_PER_TICK
        track.append(message)
        now = tick
    track.append(mido.MetaMessage("end_of_track", time=max(end - now, 0) * PULSES_PER_TICK))
    return track
