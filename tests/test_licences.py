"""docs/licences.md names the licence of every installed package and shipped file."""

from __future__ import annotations

import re

from tests.licences import PAGE, closure, licence_of, listed
from tests.service import ROOT


def test_every_package_that_is_installed_is_listed_with_its_licence() -> None:
    found = closure((ROOT / "requirements.txt").read_text(encoding="utf-8"))
    assert {"fastapi", "numpy", "onnxruntime"} <= set(found)
    told = listed(PAGE.read_text(encoding="utf-8"))
    missing = {name: licence_of(package) for name, package in found.items() if name not in told}
    assert not missing, "run: python -m tests.licences"
    other = {
        name: (told[name], licence_of(package)) for name, package in found.items() if told[name] != licence_of(package)
    }
    assert not other, "a licence is another one now: see whether it suits, then run: python -m tests.licences"


def test_every_licence_is_one_that_lets_the_package_be_used_as_it_is() -> None:
    known = re.compile(r"MIT|BSD|Apache|Mozilla|MPL|PSF|LGPL|0BSD|Zlib|CC0|ISC|Unlicense")
    for name, licence in listed(PAGE.read_text(encoding="utf-8")).items():
        assert known.search(licence) and not re.search(r"\bA?GPL", licence), f"{name}: {licence}"


def test_every_licence_of_others_that_lies_here_is_named() -> None:
    shipped = [ROOT / "LICENSE", *(ROOT / "backend").rglob("*"), *(ROOT / "frontend").rglob("*")]
    licences = {
        file.relative_to(ROOT).as_posix()
        for file in shipped
        if re.search(r"(^|-)licen[cs]e(\.\w+)?$", file.name, re.IGNORECASE)
    }
    page = PAGE.read_text(encoding="utf-8")
    named = {str(path) for path in re.findall(r"\]\(\.\./([^)]+)\)", page)}
    assert {"LICENSE", "backend/tasks/music/data/sounds/LICENSE"} <= licences <= named
