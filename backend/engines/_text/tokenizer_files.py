"""The files that tell of a tokenizer beside a model, as Hugging Face's tools write them: template, marks, names.

Standard library only: the server reads them to judge a folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from backend.common.errors import ModelBroken
from backend.common.files import read_text

_FETCH = "Fetch the whole folder again from where it came."


@dataclass(frozen=True)
class TokenizerFolder:
    """A model's folder. Raises ModelBroken where a file that is asked for is damaged."""

    path: Path

    @cached_property
    def tokenizer(self) -> Mapping[str, Any]:
        """tokenizer_config.json, empty where there is none."""
        return read_json(self.path / "tokenizer_config.json", missing={})

    @cached_property
    def _vocabulary(self) -> Mapping[str, Any]:
        return read_json(self.path / "tokenizer.json", missing={})

    @property
    def chat_template(self) -> str | None:
        """The template for conversations; of several the one named default."""
        file = self.path / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8")
        found = self.tokenizer.get("chat_template")
        if found is None:
            found = read_json(self.path / "chat_template.json", missing={}).get("chat_template")
        if isinstance(found, list):
            named = {item.get("name"): item.get("template") for item in found if isinstance(item, dict)}
            found = named.get("default")
        return found if isinstance(found, str) else None

    @property
    def names(self) -> dict[str, str]:
        """What templates may ask for: `bos_token` and the others as they are written."""
        found = {f"{name}_token": self.tokenizer.get(f"{name}_token") for name in ("bos", "eos", "unk", "pad")}
        texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in found.items()}
        return {name: text for name, text in texts.items() if isinstance(text, str)}

    @property
    def control_marks(self) -> list[str]:
        """Tokens that steer the model and never come from text."""
        added = list(self._vocabulary.get("added_tokens") or ())
        added += list((self.tokenizer.get("added_tokens_decoder") or {}).values())
        marks = [token["content"] for token in added if isinstance(token, dict) and token.get("special")]
        return [mark for mark in marks if isinstance(mark, str)]

    @property
    def begins_with_bos(self) -> bool:
        """Whether the tokenizer puts the beginning mark before every text."""
        told = self.tokenizer.get("add_bos_token")
        if isinstance(told, bool):
            return told
        processor = self._vocabulary.get("post_processor") or {}
        steps = [processor, *(processor.get("processors") or ())]
        return any("SpecialToken" in (step.get("single") or [{}])[0] for step in steps)


def read_json(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    """A JSON object from a file; `missing` where there is none. Raises ModelBroken."""
    try:
        found = json.loads(read_text(path))
    except FileNotFoundError:
        if missing is not None:
            return missing
        raise ModelBroken(f"{path.parent.name} has no {path.name}.", _FETCH) from None
    except OSError as error:
        raise ModelBroken(f"{path} cannot be read: {error.strerror}.", "Check that you may read it.") from None
    except ValueError:
        raise ModelBroken(f"{path.parent.name}/{path.name} is not JSON.", _FETCH) from None
    if not isinstance(found, dict):
        raise ModelBroken(f"{path.parent.name}/{path.name} is not a JSON object.", _FETCH)
    return found
