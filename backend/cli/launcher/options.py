"""Separates the launcher's own options from those of the server."""

from collections.abc import Sequence
from dataclasses import dataclass

from backend.common.errors import Configuration


@dataclass(frozen=True)
class Options:
    """The launcher's options, and in `rest` those of the server. `gpu` is None if not given."""

    browser: bool
    gpu: str | None
    rest: tuple[str, ...]


def parse(arguments: Sequence[str]) -> Options:
    """Parse `--no-browser` and `--gpu auto|NAME|none`; keep the order of the rest. Raises Configuration."""
    gpu: str | None = None
    browser = True
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--no-browser":
            browser = False
        elif word == "--gpu" or word.startswith("--gpu="):
            gpu = word.removeprefix("--gpu=") if "=" in word else next(words, "")
            if not gpu or gpu.startswith("-"):
                raise Configuration("--gpu needs a value.", "Give auto, none or a runtime's name, as in --gpu none.")
        else:
            rest.append(word)
    return Options(browser, gpu, tuple(rest))
