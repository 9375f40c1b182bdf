"""The tokenizer files of a model folder, as Hugging Face's tools write them: chat template, special tokens, names.

Standard library only: the server reads them to validate a folder.
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
from backend.common.types import JsonObject

_FETCH = "Download the complete folder again from its source."


@dataclass(frozen=True)
class TokenizerFolder:
    """A model folder. Its properties raise ModelBroken if the file they read is damaged."""

    path: Path

    @cached_property
    def tokenizer(self) -> Mapping[str, Any]:
        """The content of tokenizer_config.json; empty if there is no such file."""
        return read_json(self.path / "tokenizer_config.json", missing={})

    @cached_property
    def _vocabulary(self) -> Mapping[str, Any]:
        return read_json(self.path / "tokenizer.json", missing={})

    @property
    def chat_template(self) -> str | None:
        """Optional. The chat template; of several, the one named `default`."""
        file = self.path / "chat_template.jinja"
        if file.is_file():
            return _read_template(file)
        template = self.tokenizer.get("chat_template")
        if template is None:
            template = read_json(self.path / "chat_template.json", missing={}).get("chat_template")
        if isinstance(template, list):
            named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
            template = named.get("default")
        return template if isinstance(template, str) else None

    @property
    def names(self) -> dict[str, str]:
        """The special tokens that templates may use, as strings: `bos_token`, `eos_token`, `unk_token`, `pad_token`."""
        entries = {f"{name}_token": self.tokenizer.get(f"{name}_token") for name in ("bos", "eos", "unk", "pad")}
        texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in entries.items()}
        return {name: text for name, text in texts.items() if isinstance(text, str)}

    @property
    def control_marks(self) -> list[str]:
        """Special tokens, which control the model and are never parsed from text."""
        added = list(self._vocabulary.get("added_tokens") or ())
        added += list((self.tokenizer.get("added_tokens_decoder") or {}).values())
        marks = [token["content"] for token in added if isinstance(token, dict) and token.get("special")]
        return [mark for mark in marks if isinstance(mark, str)]

    @property
    def begins_with_bos(self) -> bool:
        """Whether the tokenizer puts the BOS token before every text."""
        add_bos = self.tokenizer.get("add_bos_token")
        if isinstance(add_bos, bool):
            return add_bos
        processor = self._vocabulary.get("post_processor") or {}
        steps = [processor, *(processor.get("processors") or ())]
        return any("SpecialToken" in (step.get("single") or [{}])[0] for step in steps)


def _read_template(path: Path) -> str:
    try:
        return read_text(path)
    except OSError as error:
        raise ModelBroken(f"{path} cannot be read: {error.strerror}.", "Check that you may read it.") from None
    except ValueError:
        raise ModelBroken(f"{path.parent.name}/{path.name} is not UTF-8 text.", _FETCH) from None


def read_json(path: Path, missing: JsonObject | None = None) -> JsonObject:
    """Parse a JSON object from a file. Returns `missing` if there is no file and it is not None. Raises ModelBroken."""
    try:
        content = json.loads(read_text(path))
    except FileNotFoundError:
        if missing is not None:
            return missing
        raise ModelBroken(f"{path.parent.name} has no {path.name}.", _FETCH) from None
    except OSError as error:
        raise ModelBroken(f"{path} cannot be read: {error.strerror}.", "Check that you may read it.") from None
    except ValueError:
        raise ModelBroken(f"{path.parent.name}/{path.name} is not JSON.", _FETCH) from None
    if not isinstance(content, dict):
        raise ModelBroken(f"{path.parent.name}/{path.name} is not a JSON object.", _FETCH)
    return content
