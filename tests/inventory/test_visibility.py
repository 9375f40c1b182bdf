"""Variables that hide cards are reported in sentences and never change ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.common.hardware.visibility import VARIABLES, hidden_by
from backend.common.types import Hardware
from tests.inventory.machines import found, sample


def card(number: int, vendor: str = "NVIDIA", name: str = "NVIDIA A100", uuid: str | None = None) -> Hardware:
    return Hardware(f"pci:0000:0{number}:00.0", name, vendor, "gpu", uuid=uuid, pci_ids=f"10de:000{number}")


TWINS = [card(1, uuid="GPU-aaaa1111"), card(2, uuid="GPU-bbbb2222")]
DIFFERENT = [card(1, name="NVIDIA A100"), card(2, name="NVIDIA GeForce GT 710")]


def hidden(cards: list[Hardware], **environment: str) -> dict[str, list[str]]:
    return hidden_by(cards, environment)


@pytest.mark.parametrize(
    ("value", "gone"),
    [
        ("0,1", []),
        ("1,0", []),
        ("1", ["pci:0000:01:00.0"]),
        ("0", ["pci:0000:02:00.0"]),
        ("", ["pci:0000:01:00.0", "pci:0000:02:00.0"]),
        ("-1", ["pci:0000:01:00.0", "pci:0000:02:00.0"]),
        ("0,7,1", ["pci:0000:02:00.0"]),  # an invalid entry ends the list
        ("GPU-bbbb", ["pci:0000:01:00.0"]),
        ("GPU-", ["pci:0000:01:00.0", "pci:0000:02:00.0"]),  # it matches both
        ("0,0", ["pci:0000:01:00.0", "pci:0000:02:00.0"]),
        ("0, 1", []),
        ("MIG-GPU-bbbb2222/1/0", ["pci:0000:01:00.0"]),
        ("nonsense", ["pci:0000:01:00.0", "pci:0000:02:00.0"]),
    ],
)
def test_a_list_of_numbers_or_uuids(value: str, gone: list[str]) -> None:
    assert sorted(hidden(TWINS, CUDA_VISIBLE_DEVICES=value)) == gone


def test_a_number_among_different_cards_is_not_guessed() -> None:
    said = hidden(DIFFERENT, CUDA_VISIBLE_DEVICES="0")
    assert said["pci:0000:01:00.0"] == said["pci:0000:02:00.0"] == ["CUDA_VISIBLE_DEVICES=0 may hide it from CUDA."]


def test_an_instance_by_its_own_uuid_is_not_ascribed_to_a_card() -> None:
    sentences = hidden(TWINS, CUDA_VISIBLE_DEVICES="MIG-0bbd5b5d")
    assert all("may hide it from CUDA" in each for (each,) in sentences.values()) and len(sentences) == 2


def test_the_sentence_quotes_what_is_empty() -> None:
    assert hidden(TWINS, CUDA_VISIBLE_DEVICES="")["pci:0000:01:00.0"] == ["CUDA_VISIBLE_DEVICES='' hides it from CUDA."]


def test_a_variable_concerns_its_own_vendor() -> None:
    cards = [card(1), card(2, vendor="AMD"), card(3, vendor="Intel")]
    assert list(hidden(cards, ROCR_VISIBLE_DEVICES="9")) == ["pci:0000:02:00.0"]
    assert list(hidden(cards, ZE_AFFINITY_MASK="1.0")) == ["pci:0000:03:00.0"]
    assert sorted(hidden(cards, CUDA_VISIBLE_DEVICES="")) == ["pci:0000:01:00.0", "pci:0000:02:00.0"]  # HIP uses it too


def test_a_container_s_variable_counts_the_machine_s_cards_and_not_its_own() -> None:
    assert hidden(TWINS, NVIDIA_VISIBLE_DEVICES="3") == {}
    assert len(hidden(TWINS, NVIDIA_VISIBLE_DEVICES="void")) == 2


def test_mesa_s_choice_hides_only_with_an_exclamation_mark() -> None:
    assert hidden(TWINS, MESA_VK_DEVICE_SELECT="10de:0001") == {}
    assert list(hidden(TWINS, MESA_VK_DEVICE_SELECT="10de:0001!")) == ["pci:0000:02:00.0"]


@pytest.mark.parametrize("variable", sorted({variable.name for variable in VARIABLES}))
@pytest.mark.parametrize("value", ["", "0", "x,,;:!", "-1", "9" * 500, "level_zero:0", "GPU-"])
def test_no_value_of_any_variable_makes_it_fail(variable: str, value: str) -> None:
    cards = [card(n, vendor) for n, vendor in enumerate(("NVIDIA", "AMD", "Intel", "Qualcomm"), 1)]
    for sentences in hidden_by(cards, {variable: value}).values():
        assert all(len(sentence) < 250 and sentence.endswith(".") for sentence in sentences)


def test_permuted_variables_change_no_id(tmp_path: Path) -> None:
    machine = sample("two-of-one-name")
    ids = [
        list(found(machine | {"environment": {"HIP_VISIBLE_DEVICES": value}}, tmp_path / name))
        for name, value in (("a", "0,1"), ("b", "1,0"), ("c", "1"), ("d", ""))
    ]
    assert ids[0] == ids[1] == ids[2] == ids[3] == ["cpu:0", "pci:0000:09:00.0", "pci:0000:86:00.0"]
