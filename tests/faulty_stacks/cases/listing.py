"""Stacks that list too many or too few cards, lose cards, or print secrets."""

from __future__ import annotations

from tests.faulty_stacks.cases.case import CARD, DIRECTML, PCI, READY, SECRET, TWIN, TWIN_PCI, Case, at

CASES = [
    Case("number of devices", "a thousand", {"cards": [{}], "times": 1000}, **READY, device="cuda:63"),
    Case("two of one name", "by address", {"cards": [TWIN, CARD]}, **READY, also={"hardware_id": PCI}),
    Case(
        "two of one name",
        "the second",
        {"cards": [TWIN, CARD]},
        **READY,
        device="cuda:1",
        also={"hardware_id": TWIN_PCI},
    ),
    Case(
        "two of one name",
        "by uuid",
        {"cards": [{"uuid": TWIN["uuid"]}, {"uuid": CARD["uuid"]}]},
        **READY,
        device="cuda:1",
        also={"hardware_id": f"uuid:{CARD['uuid']}"},
    ),
    Case(
        "two of one name", "without identity", {"cards": [{}, {}]}, **READY, device="cuda:1", also={"hardware_id": None}
    ),
    Case("two of one name", "of one identity", {"cards": [CARD, CARD]}, **READY, device="cuda:1"),
    Case(
        "two of one name",
        "names that hurt",
        {"cards": [{"name": "\x1b[31mRTX\u202e\n" + "9" * 500}]},
        **READY,
        also={"name": "RTX " + "9" * 96},
    ),
    Case("gone", "deaf to the variable", {"cards": [CARD, TWIN], "deaf": True}, **READY, device="cuda:1"),
    *(
        Case(
            "secrets printed",
            variant,
            at(point, action, text),
            "broken",
            stage,
            None,
            "while",
            "",
            also={"no_secret": True},
        )
        for variant, point, action, text, stage in [
            ("in an exception", "matmul", "raise", ["RuntimeError", f"request with token={SECRET} refused"], "visible"),
            ("in the last line", "matmul", "abort", f"fatal error: Authorization: Bearer {SECRET}", "visible"),
            (
                "in an address",
                "properties",
                "raise",
                ["RuntimeError", f"https://user:{SECRET}@example.org/ failed"],
                "none",
            ),
            ("as a key", "to", "raise", ["RuntimeError", f"API_KEY={SECRET}; PASSWORD={SECRET}"], "visible"),
            ("bare", "import", "raise", ["RuntimeError", f"{SECRET} is not valid"], "none"),
        ]
    ),
    Case(
        "DirectML",
        "an adapter",
        {"cards": [], "cuda": None, "adapters": ["AMD Radeon RX 6800"]},
        **READY,
        device="directml:0",
        packages=DIRECTML,
        also={"name": "AMD Radeon RX 6800", "hardware_id": None},
    ),
]
