"""The signal chain of the sampler, compared with direct computations: envelope, loop, reverb, limiter, weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from backend.tasks.music.grid import SIDES
from backend.tasks.music.limiter import CEILING, Limiter
from backend.tasks.music.note_player import RATE, Sampler, render_tone
from backend.tasks.music.reverb import Reverb
from backend.tasks.music.soundbank import GUARD, Recording
from backend.tasks.music.tokens import VOCABULARY, token_names
from backend.tasks.music.weights import DATA, read_header, read_weights

BLOCK = 8192


def recording(samples: NDArray[np.float32], loop: tuple[int, int] | None = None, **changes: float) -> Recording:
    """Return a recording at MIDI note 60 without envelope, unless `changes` sets one."""
    behind = np.resize(samples[loop[0] : loop[1]], GUARD) if loop else np.zeros(GUARD, np.float32)
    padded = np.concatenate([np.zeros(GUARD, np.float32), samples, behind])
    values = {"gain": 1.0, "attack_s": 0.0, "hold_s": 0.0, "decay_s": 0.0, "sustain_db": 0.0, "release_s": 0.3}
    return Recording(samples=padded, rate=RATE, root=60.0, loop=loop, **{**values, **changes})


def sine(frames: int, hertz: float) -> NDArray[np.float32]:
    return np.sin(2 * np.pi * hertz * np.arange(frames) / RATE).astype(np.float32)


# Tones


def test_a_loop_continues_a_periodic_recording() -> None:
    tone = render_tone(recording(sine(4410, 441), loop=(2000, 4000)), 60, 20_000)
    assert np.abs(tone[100:] - sine(20_000, 441)[100:]).max() < 0.01


@pytest.mark.parametrize("semitones", [-12, -5, 0, 4, 7])
def test_a_recording_without_a_loop_ends_earlier_at_a_higher_pitch(semitones: int) -> None:
    tone = render_tone(recording(sine(8820, 441)), 60 + semitones, 50_000)
    assert len(tone) == int(8820 / 2 ** (semitones / 12))


@pytest.mark.parametrize("semitones", [-12, -7, 3, 12])
def test_a_tone_has_the_frequency_of_its_pitch(semitones: int) -> None:
    tone = render_tone(recording(sine(44_100, 441), loop=(0, 44_100)), 60 + semitones, RATE)
    peak = np.abs(np.fft.rfft(tone * np.hanning(len(tone)))).argmax()
    assert abs(peak - 441 * 2 ** (semitones / 12)) <= 1


def test_the_envelope_rises_holds_and_decays_in_decibels() -> None:
    constant = np.ones(44_100, np.float32)
    changes = {"attack_s": 0.1, "hold_s": 0.1, "decay_s": 1.0, "sustain_db": 20.0, "gain": 0.5}
    tone = render_tone(recording(constant, loop=(1000, 44_100), **changes), 60, 2 * RATE)
    at = [round(seconds * RATE) for seconds in (0.05, 0.15, 0.3, 0.35, 1.0, 1.9)]
    assert tone[at] == pytest.approx([0.25, 0.5, 0.5 * 10**-0.5, 0.5 * 10**-0.75, 0.05, 0.05], rel=0.02)


def test_a_note_is_cached_and_its_release_falls_to_silence() -> None:
    sampler = Sampler()
    note = sampler.note("violin", 69, RATE // 2)
    assert sampler.note("violin", 69, RATE // 2) is note
    longer = sampler.note("violin", 69, RATE)
    assert np.array_equal(note[: RATE // 2], longer[: RATE // 2]), "the held part is the same tone"
    assert np.abs(note[-100:]).max() < 0.001 * np.abs(note).max()


# Reverb


def test_the_reverb_is_a_convolution_with_its_impulse_response() -> None:
    impulse = np.zeros(BLOCK, np.float32)
    impulse[0] = 1
    reverb, blocks = Reverb(RATE, BLOCK), 10
    response = np.concatenate(
        [reverb.process(impulse if number == 0 else np.zeros(BLOCK, np.float32)) for number in range(blocks)], 1
    )
    dry = np.random.default_rng(1).normal(0, 1, 3 * BLOCK).astype(np.float32)
    reverb = Reverb(RATE, BLOCK)
    padded = np.concatenate([dry, np.zeros((blocks - 3) * BLOCK, np.float32)])
    wet = np.concatenate([reverb.process(padded[at : at + BLOCK]) for at in range(0, len(padded), BLOCK)], 1)
    for channel in range(2):
        direct = np.convolve(dry, response[channel])[: wet.shape[1]]
        assert np.abs(wet[channel] - direct).max() < 1e-3 * np.abs(direct).max()


def test_the_impulse_response_has_unit_energy_a_predelay_and_decays() -> None:
    impulse = np.zeros(BLOCK, np.float32)
    impulse[0] = 1
    reverb = Reverb(RATE, BLOCK)
    response = np.concatenate([reverb.process(impulse if not number else impulse * 0) for number in range(8)], 1)
    assert (response**2).sum(1) == pytest.approx([1, 1], rel=0.01)
    assert np.abs(response[:, : int(0.013 * RATE)]).max() < 1e-4
    tenth = RATE // 10
    levels = [float((response[:, at : at + tenth] ** 2).sum()) for at in range(tenth, 12 * tenth, tenth)]
    assert all(after < before for before, after in zip(levels, levels[1:], strict=False))
    assert levels[10] < levels[0] * 10**-4.5
    assert abs(np.corrcoef(response)[0, 1]) < 0.1, "the channels are decorrelated"


# Limiter


@pytest.mark.parametrize("block", [4096, 8192])
def test_quiet_audio_passes_unchanged_one_block_later(block: int) -> None:
    limiter, chance = Limiter(block), np.random.default_rng(2)
    blocks = [(chance.uniform(-0.7, 0.7, (2, block))).astype(np.float32) for _ in range(4)]
    outputs = [limiter.process(each) for each in blocks]
    assert not outputs[0].any()
    for before, after in zip(blocks, outputs[1:], strict=False):
        assert np.array_equal(before, after)


def test_a_peak_lowers_the_gain_before_it_and_both_channels_alike() -> None:
    limiter = Limiter(8192)
    quiet = np.full((2, 8192), 0.5, np.float32)
    loud = quiet.copy()
    loud[0, 100] = 4.0
    limiter.process(quiet)
    before, after = limiter.process(loud), limiter.process(quiet)
    assert np.abs(after).max() <= CEILING
    assert before[0, -1] < 0.45, "the gain falls before the peak"
    assert np.array_equal(before[0], before[1])
    assert before[0, 0] == pytest.approx(0.5), "a second before the peak the gain is one"


# Weights


def test_the_input_of_the_network_is_a_sum_of_embeddings() -> None:
    weights = read_weights()
    chance = np.random.default_rng(3)
    ids = chance.integers(VOCABULARY, size=5)
    sides = np.stack([chance.integers(size, size=5) for size in SIDES], 1)
    expected = weights.arrays["token"][ids].astype(np.float32)
    for number in range(len(SIDES)):
        expected = expected + weights.arrays[f"side.{number}"][sides[:, number]].astype(np.float32)
    assert np.array_equal(weights.embed(ids, sides), expected)


@pytest.mark.parametrize("position", [0, 1, 500, 1023])
def test_the_rotary_embedding_is_a_rotation(position: int) -> None:
    cos, sin = read_weights().rotation(position)
    assert np.allclose(cos**2 + sin**2, 1, atol=1e-6)
    assert position or (cos.min() == 1 and not sin.any())


def test_the_tokeniser_file_names_the_tokens_of_the_code() -> None:
    stored = json.loads((DATA / "tokeniser.json").read_text("utf-8"))
    assert stored["tokens"] == token_names() and stored["side_sizes"] == list(SIDES)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a weights file"),
        (b"\x00" * 100, "not a weights file"),
        ((10**9).to_bytes(8, "little") + b"{}", "not a weights file"),
        ((50).to_bytes(8, "little") + b'{"a": 1', "truncated"),
        ((2).to_bytes(8, "little") + b"{}", "not a weights file"),
    ],
)
def test_another_file_is_not_read_as_weights(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=reason):
        read_weights(tmp_path / "w.safetensors")


def test_weights_of_another_shape_are_rejected(tmp_path: Path) -> None:
    header, start = read_header(DATA / "weights.safetensors")
    shape = json.loads(header["__metadata__"]["shape"])
    header["__metadata__"]["shape"] = json.dumps({**shape, "layers": shape["layers"] - 1})
    text = json.dumps(header).encode()
    body = (DATA / "weights.safetensors").read_bytes()[start:]
    (tmp_path / "w.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + body)
    with pytest.raises(ValueError, match="does not belong"):
        read_weights(tmp_path / "w.safetensors")
