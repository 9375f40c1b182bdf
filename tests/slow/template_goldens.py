"""Compute `golden.json` for tests/test_templates.py with transformers.

Run it in an environment with transformers (no torch is needed): without arguments it compares, with --write it writes.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "cases" / "templates"
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def expected() -> dict[str, Any]:
    """By template and conversation what transformers renders, or the error it ends with."""
    utils = importlib.import_module("transformers.utils.chat_template_utils")
    conversations = json.loads((FOLDER / "conversations.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = {"transformers": importlib.import_module("transformers").__version__}
    for file in sorted(FOLDER.glob("*.jinja")):
        template = file.read_text(encoding="utf-8")
        found[file.stem] = {name: _rendered(utils, template, talk) for name, talk in conversations.items()}
    return found


def _rendered(utils: Any, template: str, talk: dict[str, Any]) -> dict[str, str]:
    messages = utils._normalize_chat_messages(talk["messages"])
    try:
        texts, _ = utils.render_jinja_template(
            [messages], tools=talk.get("tools"), chat_template=template, add_generation_prompt=True, **NAMES
        )
    except Exception as error:  # noqa: BLE001 (the template's own error is the result)
        return {"error": f"{error}"}
    return {"text": texts[0]}


def main() -> int:
    """0 if the file says what transformers says."""
    golden = FOLDER / "golden.json"
    found = expected()
    if "--write" in sys.argv:
        golden.write_text(json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
        return 0
    stored = json.loads(golden.read_text(encoding="utf-8"))
    different = [name for name in found if name != "transformers" and found[name] != stored.get(name)]
    print(f"transformers {found['transformers']}, golden by {stored['transformers']}; different: {different or 'none'}")
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main())
