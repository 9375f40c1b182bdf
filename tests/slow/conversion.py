"""Convert the default model: `python -m tests.slow.conversion [--data-dir FOLDER]`, some minutes and 2 GB.

As a user would: a server, the environment made by the service itself, the GGUF file to int8, then the same weights as a
folder of safetensors to int8. Each form must say what its source says, and answer through the service with its receipt.
With `--data-dir` the environment is kept for the next run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from backend.common.config.settings import load_settings
from backend.common.formats.gguf import tokenizer
from backend.common.formats.gguf.vocabulary import read_vocabulary
from backend.models import Catalogue
from tests.conftest import MODEL, STORE
from tests.service import ROOT, Server, follow, furnished, start_server

LIMIT_S = 1800.0
LEAST_ALIKE = (
    0.5  # of the source's tokens before the first difference: int8 has two thirds, a wrong tokenizer next to none
)


def main() -> int:
    """0 if both forms agree with their sources."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="a data folder to keep")
    args = parser.parse_args()
    model = Catalogue(load_settings({"storage.data_dir": str(STORE)}, {})).resolve(MODEL).target
    with tempfile.TemporaryDirectory() as folder:
        data_dir = (args.data_dir or Path(folder) / "data").absolute()
        if not (data_dir / "models" / model.name).exists():
            furnished(data_dir, model)
        server = start_server(data_dir)
        try:
            server.http.get("/api/devices", params={"wait_s": 60})
            converted(server, MODEL, "onnx-int8")
            weights = data_dir / "models" / "weights"
            read(data_dir, model, weights)
            shown = {one["id"]: one for one in server.http.get("/api/models").json()["models"]}["weights"]
            print(f"weights: {shown['state']}, {shown['details']}; {shown['reason']} {shown['remedy']}")
            converted(server, "weights", "onnx-int8")
        finally:
            assert server.stop() == 0
    return 0


def converted(server: Server, model: str, form: str) -> None:
    """Converts and looks at what came: the comparison, the engines, an answer of the new form."""
    began = time.monotonic()
    job = server.http.post(f"/api/models/{model}/convert", json={"to": form}).json()
    done = server.until(job["id"], "done", "error", "interrupted", limit_s=LIMIT_S)
    assert done["status"] == "done", done["error"]
    phases = dict.fromkeys(event.data["phase"] for event in follow(server, job["id"]) if event.event == "progress")
    print(f"{model} → {form} in {time.monotonic() - began:.0f} s ({', '.join(phases)})")
    print(done["output"]["text"])
    found = {one["id"]: one for one in server.http.get("/api/models").json()["models"]}[model]
    agreed: dict[str, Any] = found["details"]["forms"]["onnx-genai"]
    assert found["state"] == "ready" and "onnx-genai" in found["engines"], found
    assert agreed["prompts_tokenized_alike"] == agreed["prompts"], agreed
    assert agreed["tokens_alike"] >= LEAST_ALIKE * agreed["tokens"], agreed
    options = {"max_tokens": 16, "temperature": 0}
    said = server.generate(model=model, engine="onnx-genai", prompt="Why is the sky blue?", options=options)
    assert said["status"] == "done" and said["output"]["text"], said
    print(f"It says: {said['output']['text']}")
    assert (said["receipt"]["engine"], said["receipt"]["used"]) == ("onnx-genai", "cpu"), said["receipt"]


def read(data_dir: Path, model: Path, folder: Path) -> None:
    """The weights of the GGUF file as safetensors, by the environment that the service made."""
    if not (folder / "config.json").exists():
        python = next((data_dir / "runtimes" / "convert").glob("*/bin/python"))
        command = [str(python), "-I", str(ROOT / "backend" / "child"), "weights", "read", str(model), str(folder)]
        subprocess.run(command, check=True)
        tokenizer.write(read_vocabulary(model), folder, 2048)


if __name__ == "__main__":
    sys.exit(main())
