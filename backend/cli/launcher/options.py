"""The launcher's own options, told apart from those that go on to the server."""

from collections.abc import Sequence
from dataclasses import dataclass

from backend.common.errors import Configuration


@dataclass(frozen=True)
class Options:
    """The launcher's own, and `rest`, the server's."""

    browser: bool
    gpu: str | None  # None: not given
    rest: tuple[str, ...]


def parse(arguments: Sequence[str]) -> Options:
    """`--no-browser` and `--gpu auto|NAME|none` are the launcher's; the order of the rest stays."""
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
