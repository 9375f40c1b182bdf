"""Rendered audio: lengths, levels, silence at the end, no clicks, onsets as in the score, reproducible."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from backend.tasks.audio.progress import Cancelled
from backend.tasks.music import audio
from backend.tasks.music.backing import arrange
from backend.tasks.music.choices import INSTRUMENTS
from backend.tasks.music.limiter import CEILING, Limiter
from backend.tasks.music.note_player import RATE, Sampler, render_tone
from backend.tasks.music.score import Melody, Note, Part, Score
from backend.tasks.music.soundbank import GUARD, Recording, recording_for, recordings
from tests.music.measuring import decibels, onset_s, roughness, true_peak
from tests.music.tunes import tune
from tests.service import ROOT

Samples = NDArray[np.float64]


def going_on(done: int, total: int) -> bool:
    return False


def render(score: Score, path: Path, seconds: float | None = None) -> Samples:
    audio.write_audio(score, [(path, "wav")], seconds, going_on)
    samples, rate = soundfile.read(path, always_2d=True)
    assert rate == RATE == 44_100 and samples.shape[1] == 2
    assert soundfile.info(path).subtype == "PCM_16"
    found: Samples = samples
    return found


SCORES = {
    "jig-flute": arrange(tune(1, bars=8), "flute", "full", 112, "A jig"),
    "reel-banjo": arrange(tune(2, "reel", (4, 4), bars=8), "banjo", "full", 200, "A reel"),
    "air-harp": arrange(tune(3, "air", (3, 4), "A", "minor", bars=8), "harp", "chords", 80, "An air"),
    "march-organ": arrange(tune(4, "march", (2, 4), bars=8), "church-organ", "bass", 100, "A march"),
    "fast-piano": arrange(tune(5, "reel", (4, 4), bars=8), "piano", "none", 300, "A fast reel"),
    "slow-accordion": arrange(tune(6, "strathspey", (4, 4), bars=2), "accordion", "full", 30, "A slow one"),
}


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
def test_levels_and_the_end(score: Score, tmp_path: Path) -> None:
    samples = render(score, tmp_path / "tune.wav")
    assert decibels(float(np.abs(samples).max())) <= -1.0
    assert decibels(true_peak(samples)) <= -1.0
    assert -21 < decibels(float(np.sqrt(np.mean(samples[: int(score.seconds * RATE)] ** 2)))) < -14
    assert np.abs(samples.mean(axis=0)).max() < 0.001
    assert np.abs(samples[-441:]).max() == 0.0 and np.abs(samples[-RATE // 5 :]).max() < 0.001
    # Both ears hear something, and not the same.
    left, right = samples.T
    assert 0.5 < np.std(left) / np.std(right) < 2 and np.std(left - right) > 0.02 * np.std(left)


@pytest.mark.parametrize("seconds", [19.2, 20.0, 23.456, 60.0])
def test_seconds_are_exact_to_the_sample_and_the_end_fades(seconds: float, tmp_path: Path) -> None:
    score = arrange(tune(7, "reel", (4, 4), bars=8), "violin", "full", 100, "A reel")
    assert abs(score.seconds - 19.2) < 1e-9
    samples = render(score, tmp_path / "tune.wav", seconds)
    assert len(samples) == round(seconds * 44_100)
    assert np.abs(samples[-1]).max() == 0.0
    assert decibels(float(np.abs(samples[-220:]).max())) < -40


def test_more_music_than_seconds_is_refused_and_no_seconds_mean_ring_out(tmp_path: Path) -> None:
    score = arrange(tune(8, bars=2), "flute", "none", 100, "A jig")
    with pytest.raises(ValueError, match="do not fit"):
        audio.write_audio(score, [(tmp_path / "tune.wav", "wav")], score.seconds - 0.01, going_on)
    assert len(render(score, tmp_path / "tune.wav")) == round((score.seconds + audio.RING_OUT_S) * RATE)


def test_wav_and_flac_are_the_same_and_so_is_every_render(tmp_path: Path) -> None:
    score = SCORES["reel-banjo"]
    both = [(tmp_path / "tune.wav", "wav"), (tmp_path / "tune.flac", "flac")]
    frames = audio.write_audio(score, both, None, going_on)
    wav, flac = (soundfile.read(path, dtype="int16")[0] for path, _ in both)
    assert len(wav) == frames and np.array_equal(wav, flac)
    bytes_before = both[0][0].read_bytes()
    audio.sampler.cache_clear()  # what was computed before must not matter
    audio.write_audio(score, both, None, going_on)
    assert both[0][0].read_bytes() == bytes_before


def test_another_process_renders_the_same(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.music.test_render_audio import SCORES, audio, going_on\n"
        "audio.write_audio(SCORES['slow-accordion'], [(Path(sys.argv[1]), 'wav')], None, going_on)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "there.wav")], cwd=ROOT, check=True)
    audio.write_audio(SCORES["slow-accordion"], [(tmp_path / "here.wav", "wav")], None, going_on)
    assert (tmp_path / "there.wav").read_bytes() == (tmp_path / "here.wav").read_bytes()


def test_progress_counts_blocks_and_a_stop_is_heard_at_the_next_one(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def stop_at_three(done: int, total: int) -> bool:
        seen.append((done, total))
        return done == 3

    with pytest.raises(Cancelled):
        audio.write_audio(SCORES["jig-flute"], [(tmp_path / "tune.wav", "wav")], None, stop_at_three)
    total = -(-audio.length_frames(SCORES["jig-flute"], None) // audio.BLOCK)
    assert seen == [(1, total), (2, total), (3, total)]


@pytest.mark.parametrize("instrument", ["banjo", "steel-guitar", "harp", "piano", "dulcimer"])
def test_struck_notes_begin_within_ten_milliseconds_of_the_score(instrument: str, tmp_path: Path) -> None:
    pitches = (62, 66, 69, 74, 71, 67, 64, 62, 69, 73, 76, 74)
    notes = tuple(Note(48 * number, 6, pitch, 90) for number, pitch in enumerate(pitches))
    melody = Melody("reel", (4, 4), "D", "major", 0, tuple(range(0, 576, 96)), (0,), notes, 576)
    score = Score("Steps", melody, (Part("melody", instrument, notes),), 97)
    samples = render(score, tmp_path / "tune.wav")
    late = [onset_s(samples, RATE, note.start * score.seconds_per_tick) for note in notes[1:]]
    assert -0.001 < min(late) and max(late) < 0.010, late


@pytest.mark.parametrize("instrument", INSTRUMENTS)
def test_an_instrument_is_in_tune_even_loud_and_without_clicks_all_over_its_range(instrument: str) -> None:
    reach = INSTRUMENTS[instrument]
    sampler = Sampler()
    levels = []
    for pitch in range(reach.lowest, reach.highest + 1, 3):
        note = sampler.note(instrument, pitch, RATE)
        tone = note.astype(np.float64)
        levels.append(decibels(float(np.sqrt(np.mean(tone[: RATE // 2] ** 2)))))
        assert np.abs(tone).max() < 1.0
        assert decibels(float(np.abs(tone[-200:]).max())) < -60
        # Energy is there at once: the first 15 ms come within 20 dB of the loudest.
        assert np.abs(tone[:662]).max() > 0.1 * np.abs(tone[: RATE // 2]).max(), pitch
        rough = roughness(tone[RATE // 10 : RATE - 100])
        neighbours = np.maximum(np.maximum(rough[:-2], rough[2:]), np.median(rough) / 4)
        assert (rough[1:-1] / neighbours).max() < 4, f"a click at key {pitch}"
    assert max(levels) - min(levels) < 15 and max(abs(a - b) for a, b in zip(levels, levels[1:], strict=False)) < 6


@pytest.mark.parametrize("instrument", INSTRUMENTS)
def test_recordings_sound_at_the_pitch_that_the_bank_says(instrument: str) -> None:
    reach = INSTRUMENTS[instrument]
    for pitch in range(reach.lowest, reach.highest + 1, 5):
        tone = render_tone(recording_for(instrument, pitch), pitch, RATE)[2000:34768].astype(np.float64)
        assert abs(_cents_off(tone, 440 * 2 ** ((pitch - 69) / 12))) < 35, pitch


def _cents_off(tone: Samples, expected_hz: float) -> float:
    """Return the deviation of the harmonics, from the comb filter that matches them best."""
    size = 1 << 18
    spectrum = np.log(np.abs(np.fft.rfft(tone * np.hanning(len(tone)), size)) + 1e-6)
    cents = np.arange(-80, 81, 2)
    harmonics = np.arange(1, 9)
    sums = []
    for cent in cents:
        places = harmonics * expected_hz * 2 ** (cent / 1200)
        places = places[places < RATE * 0.4]
        sums.append(spectrum[np.round(places * size / RATE).astype(int)].mean())
    return float(cents[int(np.argmax(sums))])


@pytest.mark.parametrize("instrument", INSTRUMENTS)
def test_loops_have_no_seam(instrument: str) -> None:
    for recording in recordings(instrument):
        if recording.loop is None:
            continue
        start, end = recording.loop
        real = recording.samples[64:-64].astype(np.float64)
        around = np.concatenate([real[:end], np.resize(real[start:end], 4000)])
        bends = np.abs(np.diff(around, 2))
        assert bends[end - 4 : end + 3].max() <= 1.5 * bends[start : end - 8].max() + 1e-4, recording.root


def test_the_limiter_holds_its_ceiling_without_steps() -> None:
    time_s = np.arange(4 * 8192) / RATE
    tone = np.sin(2 * np.pi * 440 * time_s) * (0.5 + 2.5 * (np.abs(time_s - 0.35) < 0.02))
    stereo = np.stack([tone, -tone]).astype(np.float32)
    limiter = Limiter(8192)
    parts = [limiter.process(stereo[:, start : start + 8192]) for start in range(0, stereo.shape[1], 8192)]
    out = np.concatenate([*parts, limiter.process(np.zeros((2, 8192), np.float32))], axis=1)[:, 8192:]
    assert np.abs(out).max() <= CEILING * 1.0001
    quiet = np.abs(time_s - 0.35) > 0.15
    np.testing.assert_allclose(out[:, quiet], stereo[:, quiet], atol=1e-6)
    gain = out[0] / np.where(np.abs(tone) > 0.1, tone, np.nan)
    steps = np.abs(np.diff(gain))
    assert np.nanmax(steps) < 0.01


@pytest.mark.parametrize("rate", [16_000, 22_050, 44_100])
@pytest.mark.parametrize("semitones", [-5, 3, 12])
def test_another_pitch_adds_next_to_nothing(semitones: int, rate: int) -> None:
    """A sine stays a sine, and a tone above 22 kHz does not alias."""
    for part_of_rate in (0.02, 0.1, 0.2, 0.3):
        pcm = np.sin(2 * np.pi * part_of_rate * np.arange(60_000)).astype(np.float32)
        silence = np.zeros(GUARD, np.float32)
        samples = np.concatenate([silence, pcm, silence])
        recording = Recording(samples, rate, 60, None, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0)
        heard = render_tone(recording, 60 + semitones, RATE)[2000:20_000].astype(np.float64)
        turns = part_of_rate * rate * 2 ** (semitones / 12) / RATE * np.arange(len(heard))
        if turns[1] > 0.5:
            assert decibels(float(np.std(heard))) < -45
            continue
        waves = np.stack([np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns)], axis=1)
        found, *_ = np.linalg.lstsq(waves, heard, rcond=None)
        wrong = heard - waves @ found
        if turns[1] < 0.35:
            assert abs(decibels(float(np.hypot(*found)))) < 1.5
            assert decibels(float(np.std(wrong) / np.std(heard))) < -60
