"""The shipped text models: their facts are complete, and each memory class has a model that fits it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from backend.models.entries import DATA, shipped
from backend.models.recommendation import recommend
from backend.models.size_fit import MemoryPlace, best_fit, fits_of
from backend.models.sources import parse

GIB = 1 << 30
ENTRIES = {id_: entry for id_, entry in shipped(Path("models")).items() if "publisher" in entry.facts}
TEXTS = {id_: entry for id_, entry in ENTRIES.items() if entry.task == "text"}
CLASSES = {
    **{f"cpu-{size}gb": MemoryPlace("cpu", size * GIB, is_card=False) for size in (4, 8, 16)},
    **{f"gpu-{size}gb": MemoryPlace("card:0", size * GIB, is_card=True) for size in (4, 6, 8, 12, 16, 24, 48)},
}


@pytest.mark.parametrize("id_", ENTRIES)
def test_the_facts_of_an_entry_are_complete(id_: str) -> None:
    entry, source = ENTRIES[id_], ENTRIES[id_].source
    assert re.fullmatch(r"[a-z0-9][a-z0-9._-]*", id_) and entry.engines and entry.licence and not entry.model_class
    assert source and source.kind == "hf" and source.repo and source.member and source.member.endswith(".gguf")
    assert parse(f"hf:{source.repo}/{source.member}"), "the source is one that `models add` takes"
    facts = entry.facts
    assert facts["good_at"].endswith(".") and len(facts["good_at"]) < 130
    assert {"parameters", "context_tokens", "licence_terms", "recommended"} <= set(facts)
    assert facts["quantization"] in entry.name and facts["gated"] is False
    assert set(facts["source"]) <= {"hub", "hub-size", "card"} and facts["source"]


@pytest.mark.parametrize("id_", ENTRIES)
def test_a_hash_has_a_fixed_revision_and_a_size(id_: str) -> None:
    """A publisher may replace a file of the main branch; its hash would then refuse the new one."""
    entry = ENTRIES[id_]
    assert entry.source
    if entry.sha256 is None:
        assert (entry.size_bytes, entry.source.revision) == (None, None) and entry.facts["listed_bytes"]
        return
    assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256) and re.fullmatch(r"[0-9a-f]{40}", entry.source.revision or "")
    assert isinstance(entry.size_bytes, int) and "hub" in entry.facts["source"]


def test_no_file_and_no_hash_occurs_twice() -> None:
    files = [(entry.source.repo, entry.source.member) for entry in ENTRIES.values() if entry.source]
    hashes = [entry.sha256 for entry in ENTRIES.values() if entry.sha256]
    assert len(set(files)) == len(files) and len(set(hashes)) == len(hashes)


def test_the_size_agrees_with_parameters_and_quantization() -> None:
    """Between four and ten bits a weight, or one of the numbers is wrong. Small models have large vocabularies."""
    for id_, entry in ENTRIES.items():
        size, parameters = entry.size_bytes or entry.facts["listed_bytes"], entry.facts["parameters"]
        if parameters:
            assert 4 <= size * 8 / parameters <= 10, id_


def test_the_catalogue_covers_sizes_and_families() -> None:
    parameters = [entry.facts["parameters"] for entry in TEXTS.values()]
    assert len(TEXTS) >= 20 and min(parameters) < 300_000_000 and max(parameters) > 32_000_000_000
    families = ("qwen", "llama", "gemma", "phi", "mistral", "smollm", "deepseek", "gpt-oss", "granite", "ministral")
    assert all(any(id_.startswith(family) for id_ in TEXTS) for family in families)
    assert len([entry for entry in ENTRIES.values() if entry.task == "embeddings"]) == 2


@pytest.mark.parametrize("name", CLASSES)
def test_the_recommended_model_fits_its_memory_class(name: str) -> None:
    found = recommend(ENTRIES.values(), [CLASSES[name]])
    assert found and found.memory_class == name and name in found.entry.facts["recommended"]
    assert found.fit and found.fit.fits == "yes", found.fit
    assert found.entry.size_bytes == found.bytes and found.bytes and found.download_s
    assert found.reason.startswith("Chosen for ") and found.entry.facts["good_at"] in found.reason


def test_each_class_has_one_model() -> None:
    named = [name for entry in ENTRIES.values() for name in entry.facts["recommended"]]
    assert sorted(named) == sorted([*CLASSES, "embeddings"])


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([MemoryPlace("cpu", 64 * GIB, False), MemoryPlace("card:0", int(7.75 * GIB), True)], "gpu-8gb"),
        ([MemoryPlace("cpu", 64 * GIB, False), MemoryPlace("card:0", 2 * GIB, True)], "cpu-16gb"),
        ([MemoryPlace("a:0", 6 * GIB, True), MemoryPlace("b:0", 25 * GIB, True)], "gpu-24gb"),
        ([MemoryPlace("a:0", 200 * GIB, True)], "gpu-48gb"),
        ([MemoryPlace("cpu", int(7.6 * GIB), False)], "cpu-8gb"),
        ([MemoryPlace("cpu", 2 * GIB, False)], None),
        ([], None),
    ],
)
def test_the_card_with_the_most_memory_decides(places: list[MemoryPlace], expected: str | None) -> None:
    found = recommend(ENTRIES.values(), places)
    assert (found and found.memory_class) == expected


@pytest.mark.parametrize(
    ("size", "memory", "card", "fits", "words"),
    [
        (5_000_000_000, 8, True, "yes", "5.0 GB of weights and about 1.0 GB for context and buffers; 8.6 GB usable"),
        (9_000_000_000, 8, True, "partly", "% of its layers fit"),
        (90_000_000_000, 8, True, "no", "only 8.6 GB usable"),
        (5_000_000_000, 8, False, "yes", "7.3 GB usable"),
        (8_000_000_000, 8, False, "no", "only 7.3 GB usable"),
        (50_000_000, 8, False, "yes", "0.05 GB of weights"),
    ],
)
def test_the_fit_has_its_arithmetic(size: int, memory: int, card: bool, fits: str, words: str) -> None:
    places = [MemoryPlace("x", memory * GIB, card), *([MemoryPlace("cpu", 16 * GIB, False)] if card else [])]
    found = fits_of(size, places)[0]
    assert found.fits == fits and words in found.reason


def test_without_a_size_nothing_is_claimed() -> None:
    assert fits_of(None, [MemoryPlace("cpu", GIB, False)]) == [] and best_fit([]) is None


def test_the_most_complete_fit_is_the_best() -> None:
    places = [MemoryPlace("a", 8 * GIB, True), MemoryPlace("b", 24 * GIB, True), MemoryPlace("cpu", 64 * GIB, False)]
    best = best_fit(fits_of(12_000_000_000, places))
    assert best and (best.device, best.fits) == ("b", "yes")


def test_the_files_of_the_catalogue_have_no_id_twice() -> None:
    """YAML keeps the last of two equal keys without a word."""
    keys = [line for file in DATA for line in file.read_text(encoding="utf-8").splitlines() if re.match(r"\S+:$", line)]
    assert len(set(keys)) == len(keys) == sum(len(yaml.safe_load(file.read_text("utf-8"))) for file in DATA)


def test_the_test_model_is_marked() -> None:
    marked = [id_ for id_, entry in shipped(Path("models")).items() if entry.facts.get("test_model")]
    assert marked == ["smollm2-135m-instruct"]
