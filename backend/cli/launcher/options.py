"""Separates the launcher's own options from those of the server."""

from collections.abc import Sequence
from dataclasses import dataclass

from backend.common.errors import Configuration

VALUES = {  # of the launcher's options, for the message if one is missing
    "--gpu": "Give auto, none or a runtime's name, as in --gpu none.",
    "--model": "Give auto, none or a model's id, as in --model none.",
}


@dataclass(frozen=True)
class Options:
    """The launcher's options, and in `rest` those of the server. `gpu` and `model` are None if not given."""

    browser: bool
    gpu: str | None
    model: str | None
    rest: tuple[str, ...]


def parse(arguments: Sequence[str]) -> Options:
    """Parse `--no-browser`, `--gpu` and `--model auto|NAME|none`; keep the order of the rest. Raises Configuration."""
    given: dict[str, str] = {}
    browser = True
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if word == "--no-browser":
            browser = False
        elif name in VALUES:
            value = value if equals else next(words, "")
            if not value or value.startswith("-"):
                raise Configuration(f"{name} needs a value.", VALUES[name])
            given[name] = value
        else:
            rest.append(word)
    return Options(browser, given.get("--gpu"), given.get("--model"), tuple(rest))
