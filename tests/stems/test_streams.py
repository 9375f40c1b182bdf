"""Streams of audio in chunks: crossfades, resampling in pieces, exact sums of written stems, and Demucs' graphs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common.errors import ModelBroken, WorkerCrashed
from backend.tasks.audio.files.tags import Tags
from backend.tasks.stems.choices import DEMUCS_STEMS, FORMATS
from backend.tasks.stems.demucs import DemucsSeparator
from backend.tasks.stems.overlap import separate_stream
from backend.tasks.stems.resampling import resample_stream
from backend.tasks.stems.separator import Samples, Stop
from backend.tasks.stems.writer import FULL_SCALE, StemFiles


def never() -> bool:
    return False


class Halves:
    """A separator that gives a quarter of the sound to one stem and the rest to the other. It keeps its chunks."""

    stems: tuple[str, ...] = ("quarter", "rest")
    rate = 8

    def __init__(self) -> None:
        self.chunks: list[Samples] = []

    def chunk_frames(self, seconds: float | None) -> int:
        return 16

    def separate(self, chunk: Samples, stop: Stop) -> Samples:
        self.chunks.append(chunk.copy())
        return np.stack([chunk * 0.25, chunk * 0.75]).astype(np.float32)


class Constant(Halves):
    """A separator whose n-th chunk is n everywhere, so that the crossfades can be seen."""

    stems: tuple[str, ...] = ("number",)

    def separate(self, chunk: Samples, stop: Stop) -> Samples:
        self.chunks.append(chunk)
        return np.full((1, *chunk.shape), len(self.chunks), np.float32)


def cut(sound: Samples, sizes: list[int]) -> Iterator[Samples]:
    """Yield the sound in blocks of these sizes, in turn."""
    at = number = 0
    while at < sound.shape[1]:
        size = sizes[number % len(sizes)]
        yield sound[:, at : at + size]
        at, number = at + size, number + 1


def sound(frames: int, channels: int = 2) -> Samples:
    return np.random.default_rng(frames).uniform(-1, 1, (channels, frames)).astype(np.float32)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    frames=st.integers(1, 100),
    channels=st.integers(1, 5),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    chunk=st.sampled_from([4, 16, 30]),
)
def test_chunks_are_joined_to_the_stems_of_the_whole_sound(
    frames: int, channels: int, sizes: list[int], chunk: int
) -> None:
    source = sound(frames, channels)
    stems = np.concatenate(list(separate_stream(cut(source, sizes), channels, Halves(), chunk, never)), 2)
    assert stems.shape == (2, channels, frames)
    assert np.abs(stems[0] - source * 0.25).max() < 1e-6 and np.abs(stems.sum(0) - source).max() < 1e-6


def test_no_audio_gives_no_stems() -> None:
    assert list(separate_stream(iter([]), 2, Halves(), 16, never)) == []
    assert list(separate_stream(iter([np.zeros((2, 0), np.float32)]), 2, Halves(), 16, never)) == []


def test_a_last_chunk_is_padded_with_silence_and_cut_again() -> None:
    separator = Halves()
    blocks = list(separate_stream(iter([sound(5)]), 2, separator, 16, never))
    assert [block.shape for block in blocks] == [(2, 2, 5)]
    assert separator.chunks[0].shape == (2, 16) and not separator.chunks[0][:, 5:].any()


def test_a_sound_of_exactly_one_chunk_is_one_chunk() -> None:
    separator = Halves()
    list(separate_stream(iter([sound(16)]), 2, separator, 16, never))
    assert len(separator.chunks) == 1


def test_two_chunks_are_faded_linearly_over_a_quarter_of_a_chunk() -> None:
    blocks = list(separate_stream(iter([sound(28)]), 2, Constant(), 16, never))
    joined = np.concatenate(blocks, 2)[0, 0]
    # The second chunk starts at frame 12. From there the first one fades out in four equal steps of a fifth.
    assert joined == pytest.approx([*[1.0] * 12, 1.2, 1.4, 1.6, 1.8, *[2.0] * 12])


def test_a_long_chunk_overlaps_by_a_second() -> None:
    blocks = list(separate_stream(iter([sound(150)]), 2, Constant(), 100, never))
    assert blocks[0].shape[2] == 100 - Constant.rate


def test_a_single_channel_is_doubled_and_the_third_of_three_too() -> None:
    separator, source = Halves(), sound(10, 3)
    (stems,) = separate_stream(iter([source]), 3, separator, 10, never)
    assert [chunk.shape for chunk in separator.chunks] == [(2, 10), (2, 10)]
    assert np.array_equal(separator.chunks[1][0], source[2]) and np.array_equal(separator.chunks[1][1], source[2])
    assert stems[1, 2] == pytest.approx(source[2] * 0.75)


# Resampling


@pytest.mark.parametrize(("source", "target"), [(44_100, 48_000), (48_000, 44_100), (8_000, 44_100)])
def test_a_resampled_tone_has_its_frequency_its_phase_and_its_length(source: int, target: int) -> None:
    def tone(rate: int) -> Any:
        return np.sin(2 * np.pi * 440 * np.arange(rate) / rate)

    stereo = np.stack([tone(source), -tone(source)]).astype(np.float32)
    resampled = np.concatenate(list(resample_stream(cut(stereo, [1000, 77]), 2, source, target)), 1)
    assert abs(resampled.shape[1] - target) <= 1
    inner = slice(target // 10, -target // 10)
    assert np.abs(resampled[0, : target - 1] - tone(target)[: target - 1])[inner].max() < 1e-3
    assert np.allclose(resampled[0], -resampled[1], atol=1e-6)


def test_a_stream_at_the_right_rate_passes_unchanged() -> None:
    blocks = [sound(5), sound(7)]
    passed = list(resample_stream(iter(blocks), 2, 44_100, 44_100))
    assert all(before is after for before, after in zip(blocks, passed, strict=True))


# Written stems


def write(folder: Path, name: str, source: Samples, stems: Samples) -> tuple[list[Any], int]:
    """Write stems in two blocks. Returns the samples of each file [channel, frame], and how many were clipped."""
    paths = [folder / f"{number}.wav" for number in range(len(stems))]
    half = source.shape[1] // 2
    with StemFiles(paths, FORMATS[name], 8000, len(source), source.shape[1], [Tags("t")] * len(stems)) as files:
        files.write(source[:, :half], stems[:, :, :half])
        files.write(source[:, half:], stems[:, :, half:])
    kind = "float32" if name == "wav-float" else "int32"
    return [soundfile.read(path, dtype=kind, always_2d=True)[0].T for path in paths], files.clipped


@pytest.mark.parametrize("count", [1, 2, 4])
def test_24_bit_stems_add_up_to_the_source_whatever_the_model_lost(tmp_path: Path, count: int) -> None:
    source = sound(1000) * 0.5
    stems = np.stack([sound(1000 + number)[:, :1000] for number in range(count)]) * 0.1
    files, clipped = write(tmp_path, "wav", source, stems)
    expected = np.rint(source.astype(np.float64) * FULL_SCALE).astype(np.int64)
    assert clipped == 0
    assert np.array_equal(sum(file.astype(np.int64) >> 8 for file in files), expected)


def test_what_the_model_lost_is_shared_evenly(tmp_path: Path) -> None:
    source = np.full((1, 10), 0.6, np.float32)
    stems = np.stack([np.full((1, 10), 0.1), np.full((1, 10), 0.2)]).astype(np.float32)
    (first, second), clipped = write(tmp_path, "wav-float", source, stems)
    assert first == pytest.approx(np.full((1, 10), 0.25)) and second == pytest.approx(np.full((1, 10), 0.35))
    assert clipped == 0


def test_clipped_samples_are_counted_and_floats_never_clip(tmp_path: Path) -> None:
    source = np.array([[0.0, 0.5, 0.0, 0.0]], np.float32)
    stems = np.stack([np.array([[1.5, 0.25, -1.5, 0.0]]), np.array([[-1.5, 0.25, 1.5, 0.0]])]).astype(np.float32)
    (first, second), clipped = write(tmp_path, "wav", source, stems)
    assert clipped == 3, "the first stem twice; the second one takes the rest, which exceeds full scale once"
    assert (first >> 8).tolist() == [[FULL_SCALE - 1, FULL_SCALE // 4, -FULL_SCALE, 0]]
    floats, clipped = write(tmp_path, "wav-float", source, stems)
    assert clipped == 0 and floats[0].max() == 1.5


# Demucs

SHAPES = {"mix": [1, 2, 50], "stems": [1, 4, 2, 50]}


@pytest.mark.parametrize(
    "shapes",
    [
        [{"mix": [1, 2, "frames"], "stems": [1, 4, 2, 50]}],
        [{"mix": [1, 2, 50], "stems": [1, 6, 2, 50]}],
        [{"mix": [1, 1, 50], "stems": [1, 4, 2, 50]}],
        [{"mix": [1, 2, 50]}],
        [{"input": [1, 2, 50], "output": [1, 4, 2, 50]}],
        [SHAPES, {"mix": [1, 2, 60], "stems": [1, 4, 2, 60]}],
    ],
)
def test_graphs_of_other_shapes_are_not_demucs(shapes: list[dict[str, list[Any]]]) -> None:
    with pytest.raises(ModelBroken, match="not Demucs graphs"):
        DemucsSeparator(lambda index, chunk, stop: chunk, shapes)


def test_each_fine_tuned_graph_gives_its_own_stem_alone() -> None:
    def compute(index: int, chunk: Samples, stop: Stop) -> Samples:
        return np.stack([np.full_like(chunk, 10 * index + stem) for stem in range(4)])

    separator = DemucsSeparator(compute, [{**SHAPES, "mix": ["batch", 2, 50]}, SHAPES, SHAPES, SHAPES])
    stems = separator.separate(np.zeros((2, 50), np.float32), never)
    assert stems.shape == (len(DEMUCS_STEMS), 2, 50) and stems[:, 0, 0].tolist() == [0, 11, 22, 33]
    assert separator.chunk_frames(3.0) == separator.chunk_frames(None) == 50


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_numbers_that_are_not_finite_end_the_worker(odd: float) -> None:
    separator = DemucsSeparator(lambda index, chunk, stop: np.full((4, 2, 50), odd, np.float32), [SHAPES])
    with pytest.raises(WorkerCrashed):
        separator.separate(np.zeros((2, 50), np.float32), never)
