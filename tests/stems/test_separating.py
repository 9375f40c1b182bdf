"""A separation job with a fake model that splits the audio by fixed factors: lengths, rates, sums, errors."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from tinytag import TinyTag

from backend.common.error_patterns import require_finite
from backend.common.errors import Validation, WorkerCrashed
from backend.tasks.audio.files.tags import Tags
from backend.tasks.audio.progress import RenderResult
from backend.tasks.options import parse_options
from backend.tasks.stems.choices import FORMATS
from backend.tasks.stems.job import JobSpec, separate
from backend.tasks.stems.separator import Samples, Stop
from backend.tasks.stems.writer import StemFiles
from tests.stems.sounds import RATE, noise, read, write

SECOND = RATE
CHUNK = 3 * SECOND
HOP = CHUNK - CHUNK // 4


class Shares:
    """A separator that scales the audio for each stem and records its calls."""

    stems = ("vocals", "accompaniment")
    rate = RATE

    def __init__(self, share: float = 0.25, missing: float = 0.0) -> None:
        self.parts = np.array([share, 1 - share - missing], np.float32)
        self.chunks: list[Samples] = []

    def chunk_frames(self, seconds: float | None) -> int:
        return CHUNK if seconds is None else round(seconds * RATE)

    def separate(self, chunk: Samples, stop: Stop) -> Samples:
        self.chunks.append(chunk)
        found: Samples = self.parts[:, None, None] * chunk
        return found


def run(
    path: Path, separator: Any, folder: Path, emit: Any = lambda event, data: False, **options: Any
) -> RenderResult:
    chosen = {"stems": None, "format": "wav", "chunk_seconds": None, **options}
    folder.mkdir(exist_ok=True)
    return separate(separator, JobSpec(path, path.name, chosen, folder), emit)


def whole(sound: Any) -> Any:
    """Return the samples as 24-bit integers."""
    return np.rint(sound * 2**23).astype(np.int64)


@pytest.mark.parametrize("frames", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, HOP, HOP + 1, 2 * HOP + 5, CHUNK + HOP])
def test_every_sample_is_shared_out_once_however_long_the_sound(tmp_path: Path, frames: int) -> None:
    path = write(tmp_path / "in.wav", noise(frames, 2))
    made = run(path, Shares(), tmp_path / "out")
    sound, vocals, rest = read(path), read(tmp_path / "out/vocals.wav"), read(tmp_path / "out/accompaniment.wav")
    assert made.complete and len(vocals) == len(rest) == frames
    assert np.array_equal(whole(vocals) + whole(rest), whole(sound))
    assert np.abs(vocals - sound / 4).max() < 2e-7
    assert made.audio_s == pytest.approx(frames / RATE, abs=1e-6)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 48_000, 96_000, 192_000])
@pytest.mark.parametrize("channels", [1, 2])
def test_any_rate_comes_back_at_its_own(tmp_path: Path, rate: int, channels: int) -> None:
    seconds = 4.37
    time = np.arange(round(seconds * rate)) / rate
    tone = np.stack([0.4 * np.sin(2 * np.pi * 440 * (n + 1) * time) for n in range(channels)], 1)
    path = write(tmp_path / "in.wav", tone, rate)
    model = Shares()
    run(path, model, tmp_path / "out")
    sound, vocals, rest = read(path), read(tmp_path / "out/vocals.wav"), read(tmp_path / "out/accompaniment.wav")
    assert soundfile.info(tmp_path / "out/vocals.wav").samplerate == rate and vocals.shape == sound.shape
    assert np.array_equal(whole(vocals) + whole(rest), whole(sound))
    inner = slice(rate // 10, -rate // 10)  # a tone that begins at once has every frequency there
    assert np.abs(vocals - sound / 4)[inner].max() < 1e-3
    assert all(chunk.shape == (2, CHUNK) for chunk in model.chunks)


@pytest.mark.parametrize("channels", [1, 3, 8])
def test_channels_are_taken_in_pairs(tmp_path: Path, channels: int) -> None:
    path = write(tmp_path / "in.wav", noise(SECOND, channels))
    model = Shares()
    run(path, model, tmp_path / "out")
    sound, vocals, rest = read(path), read(tmp_path / "out/vocals.wav"), read(tmp_path / "out/accompaniment.wav")
    assert vocals.shape == sound.shape and np.array_equal(whole(vocals) + whole(rest), whole(sound))
    assert np.abs(vocals - sound / 4).max() < 2e-7
    assert len(model.chunks) == (channels + 1) // 2


def test_what_the_model_loses_is_given_back_in_equal_parts(tmp_path: Path) -> None:
    path = write(tmp_path / "in.wav", noise(SECOND, 2))
    run(path, Shares(0.2, missing=0.4), tmp_path / "out")
    assert np.abs(read(tmp_path / "out/vocals.wav") - 0.4 * read(path)).max() < 2e-7
    run(path, Shares(0.2, missing=0.4), tmp_path / "one", stems=["vocals"])
    assert sorted(file.name for file in (tmp_path / "one").iterdir()) == ["vocals.wav"]
    assert np.abs(read(tmp_path / "one/vocals.wav") - 0.4 * read(path)).max() < 2e-7


@pytest.mark.parametrize(("form", "kind", "subtype"), [("wav", "WAV", "PCM_24"), ("flac", "FLAC", "PCM_24")])
def test_files_of_24_bits_add_up_exactly_also_where_a_stem_is_over_full_scale(
    tmp_path: Path, form: str, kind: str, subtype: str
) -> None:
    path = write(tmp_path / "in.wav", noise(SECOND, 2, level=0.5))
    made = run(path, Shares(1.5), tmp_path / "out", format=form)
    sound = read(path)
    vocals, rest = (read(tmp_path / f"out/{stem}.{form}") for stem in Shares.stems)
    assert soundfile.info(tmp_path / f"out/vocals.{form}").format == kind
    assert soundfile.info(tmp_path / f"out/vocals.{form}").subtype == subtype
    assert np.array_equal(whole(vocals) + whole(rest), whole(sound)) and np.abs(vocals).max() <= 1
    assert (
        made.counts["clipped_samples"] == (whole(sound * 1.5) != np.clip(whole(sound * 1.5), -(2**23), 2**23 - 1)).sum()
    )


def test_a_sound_over_full_scale_keeps_its_loudness_in_floats(tmp_path: Path) -> None:
    path = write(tmp_path / "in.wav", 9 * noise(SECOND, 2), subtype="FLOAT")
    made = run(path, Shares(), tmp_path / "out", format="wav-float")
    total = read(tmp_path / "out/vocals.wav") + read(tmp_path / "out/accompaniment.wav")
    assert np.abs(total - read(path)).max() < 1e-6 and made.counts["clipped_samples"] == 0
    assert run(path, Shares(), tmp_path / "short").counts["clipped_samples"] > 0


def test_each_stem_says_where_it_comes_from(tmp_path: Path) -> None:
    path = write(tmp_path / "in.wav", noise(SECOND, 2))
    order = JobSpec(path, "in.wav", parse_options("stems", {"format": "flac"}), tmp_path, "spleeter", "MIT")
    shares: Any = Shares()
    separate(shares, order, lambda *told: False)
    told = TinyTag.get(tmp_path / "vocals.flac")
    assert told.title == "in.wav: vocals"
    assert "Separated by Touchstone" in str(told.comment) and "Model: spleeter. Licence of the model: MIT." in str(
        told.comment
    )


def test_files_beyond_four_gigabytes_are_rf64(tmp_path: Path) -> None:
    for frames, kind in ((10**9, "RF64"), (10**6, "WAV")):
        with StemFiles([tmp_path / "one.wav"], FORMATS["wav"], RATE, 2, frames, [Tags("one")]) as files:
            files.write(np.full((2, 10), 0.5, np.float32), np.full((1, 2, 10), 0.5, np.float32))
        assert soundfile.info(tmp_path / "one.wav").format == kind
        assert (read(tmp_path / "one.wav") == 0.5).all()


@pytest.mark.parametrize("kind", ["wav", "flac", "ogg", "mp3"])
def test_what_libsndfile_reads_is_separated_by_its_content(tmp_path: Path, kind: str) -> None:
    soundfile.write(tmp_path / f"in.{kind}", noise(2 * SECOND, 2), RATE)
    path = (tmp_path / f"in.{kind}").rename(tmp_path / "content")
    made = run(path, Shares(), tmp_path / "out")
    assert made.counts["frames"] == len(read(tmp_path / "out/vocals.wav")) == pytest.approx(2 * SECOND, abs=2000)


def test_it_tells_how_far_it_is_and_hands_over_at_the_end(tmp_path: Path) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    run(write(tmp_path / "in.wav", noise(20 * SECOND, 2)), Shares(), tmp_path / "out", lambda *each: told.append(each))
    progress = [data for event, data in told if event == "progress"]
    for phase, unit, total in (("reading", "samples", 20 * SECOND), ("separating", "seconds", 20.0)):
        steps = [each for each in progress if each["phase"] == phase]
        assert steps[-1] == {"phase": phase, "done": total, "total": total, "unit": unit}
        assert [each["done"] for each in steps] == sorted(each["done"] for each in steps)
    assert [data for event, data in told if event == "artifact"] == [
        {"name": f"{stem}.wav", "media_type": "audio/wav"} for stem in Shares.stems
    ]
    assert told[-1][0] == "artifact"


@pytest.mark.parametrize("phase", ["reading", "separating"])
def test_a_stop_is_heard_in_each_phase_and_hands_nothing_over(tmp_path: Path, phase: str) -> None:
    told: list[str] = []

    def emit(event: str, data: dict[str, Any]) -> bool:
        told.append(event)
        return event == "progress" and data["phase"] == phase

    made = run(write(tmp_path / "in.wav", noise(30 * SECOND, 2)), Shares(), tmp_path / "out", emit)
    assert not made.complete and "artifact" not in told


def test_silence_stays_silence(tmp_path: Path) -> None:
    run(write(tmp_path / "in.wav", np.zeros((5 * SECOND, 2))), Shares(), tmp_path / "out")
    assert not read(tmp_path / "out/vocals.wav").any() and not read(tmp_path / "out/accompaniment.wav").any()


def test_numbers_that_are_none_end_the_job(tmp_path: Path) -> None:
    class Broken(Shares):
        def separate(self, chunk: Samples, stop: Stop) -> Samples:
            require_finite(float("nan"))
            return chunk

    with pytest.raises(WorkerCrashed, match="NaN"):
        run(write(tmp_path / "in.wav", noise(SECOND, 2)), Broken(), tmp_path / "out")


def test_a_stem_that_the_model_does_not_make_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "in.wav", noise(SECOND, 2))
    with pytest.raises(Validation, match="separates vocals, accompaniment, not drums"):
        run(path, Shares(), tmp_path / "out", stems=["drums"])


def wav(channels: int, data: bytes, rate: int = RATE, claims: int | None = None) -> bytes:
    size = len(data) if claims is None else claims
    facts = struct.pack("<HHIIHH", 1, channels, rate, rate * channels * 2 & 0xFFFFFFFF, channels * 2 & 0xFFFF, 16)
    head = b"RIFF" + struct.pack("<I", min(size + 36, 0xFFFFFFFF)) + b"WAVEfmt " + struct.pack("<I", 16) + facts
    return head + b"data" + struct.pack("<I", size) + data


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"Dear all,\nthis is a text.\n" * 40, "cannot be decoded as audio: Format not recognised"),
        (b"\x89PNG\r\n\x1a\n" + bytes(500), "cannot be decoded as audio"),
        (wav(2, bytes(400))[:30], "cannot be decoded as audio"),
        (wav(0, bytes(400)), "cannot be decoded as audio: Channel count is zero"),
        (wav(2, b""), "contains no audio"),
        (wav(2, bytes(400), claims=4000), "is truncated: it ends after 0.00 s"),
        (wav(2, bytes(400), rate=0), "cannot be decoded as audio"),
        (wav(2, bytes(400), rate=10), "has a sample rate of 10 Hz; 1000 to 768000 Hz are supported"),
        (wav(2, bytes(400), rate=4_000_000_000), "cannot be decoded as audio"),
        (wav(65_535, bytes(400)), "cannot be decoded as audio: Too many channels"),
        (wav(40, bytes(80_000)), "has 40 channels; the limit is 16"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_is_no_sound_is_refused_in_words(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "song.wav"
    path.write_bytes(content)
    with pytest.raises(Validation) as refused:
        run(path, Shares(), tmp_path / "out")
    assert f"song.wav {reason}" in refused.value.detail and refused.value.remedy.endswith(".")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("kind", ["wav", "flac", "ogg", "mp3", "aiff"])
def test_a_file_that_was_cut_short_is_refused(tmp_path: Path, kind: str) -> None:
    soundfile.write(tmp_path / f"in.{kind}", noise(3 * SECOND, 2), RATE)
    content = (tmp_path / f"in.{kind}").read_bytes()
    (tmp_path / "half").write_bytes(content[: len(content) // 2])
    with pytest.raises(Validation, match="half (is truncated|cannot be decoded as audio)"):
        run(tmp_path / "half", Shares(), tmp_path / "out")


def test_a_stream_whose_header_claims_four_gigabytes_is_what_came(tmp_path: Path) -> None:
    (tmp_path / "in.wav").write_bytes(wav(2, bytes(4 * SECOND), claims=0xFFFFFFFF))
    assert run(tmp_path / "in.wav", Shares(), tmp_path / "out").counts["frames"] == SECOND


@pytest.mark.parametrize("odd", [np.nan, np.inf, 1e30])
def test_samples_that_are_no_sound_are_named_by_their_time(tmp_path: Path, odd: float) -> None:
    sound = noise(10 * SECOND, 2).astype(np.float32)
    sound[7 * SECOND] = odd
    with pytest.raises(Validation, match="invalid samples .* between 5.94 and 8.92 s"):
        run(write(tmp_path / "in.wav", sound, subtype="FLOAT"), Shares(), tmp_path / "out")


def test_flac_holds_eight_channels(tmp_path: Path) -> None:
    path = write(tmp_path / "in.wav", noise(SECOND, 9))
    with pytest.raises(Validation, match="9 channels; flac supports at most 8"):
        run(path, Shares(), tmp_path / "out", format="flac")
