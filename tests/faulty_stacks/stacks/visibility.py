"""MIG instances, and environment variables that hide cards."""

from __future__ import annotations

from typing import Any

from tests.faulty_stacks.cases.case import CARD, DIRECTML, PCI, TWIN, TWIN_PCI
from tests.faulty_stacks.probed import Expected, stack
from tests.faulty_stacks.stack import Category, Stack

CUDA = "CUDA_VISIBLE_DEVICES"
PARENT = "8932f937-d72c-4106-c12f-20bd9faed9f6"
UUIDS = ("0bbd5b5d-9d4a-5a8f-9b7e-1f6f0c7a3d10", "7a1c2e64-8f0b-53a9-a6d2-5c4b3e2f1a00")
SIZES = (20 << 30, 10 << 30)
NAMES = ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "NVIDIA A100-SXM4-40GB MIG 2g.10gb")
INSTANCES: list[dict[str, Any]] = [
    {
        **CARD,
        "uuid": uuid,
        "parent": PARENT,
        "instance": f"{number}/0",
        "name": name,
        "total_memory": size,
    }
    for number, (uuid, name, size) in enumerate(zip(UUIDS, NAMES, SIZES, strict=True), 1)
]
FIRST, SECOND = (
    Expected("ready", name, "gpu", size, f"uuid:mig-{uuid}")
    for name, size, uuid in zip(NAMES, SIZES, UUIDS, strict=True)
)
NAMED = [{"name": "AMD Radeon RX 7900 XTX"}, {"name": "AMD Radeon RX 6800"}]
EQUAL = "hides 1 of 2 devices named .*, and the library does not report which, so none of them is used"


def mig(
    name: str, expected: dict[str, Expected], value: str | None = None, category: Category = "visibility", **more: Any
) -> Stack:
    environment = None if value is None else {CUDA: value}
    return stack(f"MIG-{name}", category, {"cards": INSTANCES, **more}, expected, environment=environment)


def hidden(value: str, more: str = "", name: str = CUDA, remedy: str = "without that variable") -> Expected:
    return Expected("unavailable", reason=f"started with {name}={value}, which hides it{more}[.]$", remedy=remedy)


def cards(name: str, value: str, first: Expected, second: Expected, **more: Any) -> Stack:
    """Two cards that report their identity, under a value of CUDA's variable."""
    both = {"cuda:0": first, "cuda:1": second}
    plan: dict[str, Any] = {"cards": [CARD, TWIN], **more}
    return stack(f"variable-{name}", "visibility", plan, both, environment={CUDA: value})


READY = Expected("ready", hardware_id=PCI)
READY_TWIN = Expected("ready", hardware_id=TWIN_PCI)
STACKS = [
    mig("two instances in one list", {"cuda:0": FIRST, "cuda:1": SECOND}, all_instances=True),
    mig("one instance, no variable", {"cuda:0": FIRST}, category="control"),
    mig(
        "the second by its UUID",
        {
            "cuda:0": Expected("unavailable", NAMES[0], reason=f"{CUDA}=MIG-{UUIDS[1]}, which hides it"),
            "cuda:1": SECOND,
        },
        f"MIG-{UUIDS[1]}",
    ),
    mig(
        "both by their UUIDs, of which CUDA shows one",
        {"cuda:0": FIRST, "cuda:1": SECOND},
        ",".join(f"MIG-{uuid}" for uuid in UUIDS),
    ),
    mig("both with a space between", {"cuda:0": FIRST, "cuda:1": SECOND}, f"MIG-{UUIDS[0]}, MIG-{UUIDS[1]}"),
    mig(
        "by card and numbers before driver 470",
        {"cuda:0": Expected("ready", NAMES[1], "gpu", SIZES[1], f"uuid:mig-gpu-{PARENT}/2/0")},
        f"MIG-GPU-{PARENT}/2/0",
        old_driver=True,
    ),
    mig(
        "two by card and numbers before driver 470",
        {
            f"cuda:{number}": Expected(
                "ready", NAMES[number], "gpu", SIZES[number], f"uuid:mig-gpu-{PARENT}/{number + 1}/0"
            )
            for number in range(2)
        },
        f"MIG-GPU-{PARENT}/1/0,MIG-GPU-{PARENT}/2/0",
        old_driver=True,
    ),
    mig(
        "one instance twice",
        {"cuda:0": hidden(f"MIG-{UUIDS[0]},MIG-{UUIDS[0]}", ": the entry .* is repeated, .*")},
        f"MIG-{UUIDS[0]},MIG-{UUIDS[0]}",
    ),
    mig(
        "an entry of no instance",
        {"cuda:0": hidden("MIG-f", ": the entry 'MIG-f' does not match exactly one .*")},
        "MIG-f",
    ),
    stack(
        "MIG-two instances through ONNX Runtime, which lists the card",
        "visibility",
        {"devices": [{"ep_name": "CUDAExecutionProvider", "metadata": {"pci_bus_id": "0000:01:00.0"}}]},
        {
            f"onnx-cuda:{place}": Expected("ready", kind="gpu", hardware_id=f"uuid:mig-{uuid}")
            for place, uuid in enumerate(UUIDS)
        },
        ("onnxruntime",),
        {CUDA: ",".join(f"MIG-{uuid}" for uuid in UUIDS)},
    ),
    cards("a UUID", f"GPU-{TWIN['uuid']}", hidden(f"GPU-{TWIN['uuid']}"), READY_TWIN),
    cards("a UUID's prefix", "GPU-8932f9", hidden("GPU-8932f9"), READY_TWIN, cards=[CARD, TWIN | {"uuid": PARENT}]),
    cards("a prefix of two UUIDs", "GPU-3f2b1c4d", *[hidden("GPU-3f2b1c4d", ": the entry .* exactly one .*")] * 2),
    cards(
        "a UUID without its prefix",
        str(TWIN["uuid"]),
        *[hidden(str(TWIN["uuid"]), ": the entry .* does not match exactly one .*")] * 2,
    ),
    cards("spaces in the list", "0, 1", READY, READY_TWIN),
    cards("a repeated entry", "0,0", *[hidden("0,0", ": the entry 0 is repeated, so CUDA shows no card")] * 2),
    cards("NoDevFiles", "NoDevFiles", *[hidden("NoDevFiles")] * 2),
    cards("minus one", "-1", *[hidden("-1")] * 2),
    cards("empty", "", *[hidden("")] * 2),
    cards(
        "an entry of no card",
        "0,7,1",
        READY,
        hidden("0,7,1", ": the entry '7' does not match exactly one .* from it on"),
    ),
    cards("a driver that refuses UUIDs", "1,0", READY, READY_TWIN, refuses_uuids=True),
    cards(
        "a crash under the variable",
        "1",
        *[Expected("unavailable", reason=f"{CUDA}=1. Which cards that hides is unknown, .*SIGSEGV", remedy="without")]
        * 2,
        at={"is_available in list-visible": [["signal", "SIGSEGV"]]},
    ),
    stack(
        "variable-DirectML, two names",
        "visibility",
        {"cards": [], "cuda": None, "adapters": ["Intel(R) UHD Graphics", "NVIDIA GeForce RTX 3060"]},
        {
            "directml:0": hidden("1", name="DML_VISIBLE_DEVICES"),
            "directml:1": Expected("ready", "NVIDIA GeForce RTX 3060"),
        },
        DIRECTML,
        {"DML_VISIBLE_DEVICES": "1"},
    ),
    stack(
        "variable-DirectML, one name",
        "visibility",
        {"cards": [], "cuda": None, "adapters": ["Intel(R) Arc(TM) A770 Graphics"] * 2},
        dict.fromkeys(
            ["directml:0", "directml:1"], Expected("unavailable", reason=EQUAL, remedy="without that variable")
        ),
        DIRECTML,
        {"DML_VISIBLE_DEVICES": "1"},
    ),
    stack(
        "variable-HIP, two names",
        "visibility",
        {"cards": NAMED, "hip": "7.2", "cuda": None},
        {"rocm:0": hidden("1", name="HIP_VISIBLE_DEVICES"), "rocm:1": Expected("ready", "AMD Radeon RX 6800")},
        environment={"HIP_VISIBLE_DEVICES": "1"},
    ),
    stack(
        "variable-HIP, one name",
        "visibility",
        {"cards": [{}, {}], "hip": "7.2", "cuda": None},
        dict.fromkeys(["rocm:0", "rocm:1"], Expected("unavailable", reason=EQUAL, remedy="without that variable")),
        environment={"HIP_VISIBLE_DEVICES": "0"},
    ),
    stack(
        "variable-Level Zero",
        "visibility",
        {"cards": [], "cuda": None, "xpu": "20250302", "xpu_cards": [{"name": "Arc A770"}, {"name": "Arc A380"}]},
        {"xpu:0": Expected("ready", "Arc A770"), "xpu:1": hidden("0", name="ZE_AFFINITY_MASK")},
        environment={"ZE_AFFINITY_MASK": "0"},
    ),
    stack(
        "variable-shows both of two equal cards",
        "control",
        {"cards": [{}, {}]},
        {"cuda:0": Expected(), "cuda:1": Expected()},
        environment={CUDA: "1,0"},
    ),
]
