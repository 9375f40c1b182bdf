"""The steps that need large libraries: each runs in an environment that has them, started by `child weights`.

GGUF → full precision by transformers' `gguf_file` → a plain checkpoint → the builder of ONNX Runtime GenAI; or GGUF →
OpenVINO GenAI's own reader of such files.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import shutil
import sys
from pathlib import Path

from backend.child.convert.offsets import offsets, put_back


def main(arguments: list[str]) -> int:
    """Runs a step: `read SOURCE TO`, `build CHECKPOINT TO PRECISION [KEY=VALUE …]`, `texts CHECKPOINT ASKED TO`,
    `graph SOURCE TO`, `answers ENGINE FORM TO`.
    """
    step, *rest = arguments
    if step == "read":
        _read(Path(rest[0]), Path(rest[1]))
    elif step == "graph":
        _graph(Path(rest[0]), Path(rest[1]))
    elif step == "answers":
        from backend.child.convert import comparison

        Path(rest[2]).write_text(json.dumps(comparison.texts(rest[0], rest[1]), ensure_ascii=False), encoding="utf-8")
    elif step == "texts":
        _texts(Path(rest[0]), Path(rest[1]), Path(rest[2]))
    else:
        _build(Path(rest[0]), Path(rest[1]), rest[2], rest[3:])
    return 0


def _read(source: Path, checkpoint: Path) -> None:
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        str(source.parent), gguf_file=source.name, dtype=torch.float32
    )
    # transformers does not save what it loaded from a GGUF file: the weights move into a plain model.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        plain = type(loaded)(config)
    plain.load_state_dict(loaded.state_dict(), assign=True)
    plain.tie_weights()
    plain.save_pretrained(checkpoint)
    written = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    written.pop("quantization_config", None)
    (checkpoint / "config.json").write_text(json.dumps(written), encoding="utf-8")


def _build(checkpoint: Path, output: Path, precision: str, options: list[str]) -> None:
    import onnxruntime_genai

    folder = Path(onnxruntime_genai.__file__).parent / "models"
    sys.path.insert(0, str(folder))  # the builder imports its neighbours by their plain names
    sys.argv = [
        "builder",
        *("-i", str(checkpoint), "-o", str(output), "-p", precision, "-e", "cpu", "-c", str(output) + ".cache"),
        *("--extra_options", "hf_token=false", "prune_lm_head=true", *options),
    ]
    runpy.run_path(str(folder / "builder.py"), run_name="__main__")


def _graph(source: Path, output: Path) -> None:
    """The library saves what it made of a GGUF file beside that file, so a link to it gets a folder of its own."""
    genai = importlib.import_module("openvino_genai")
    output.mkdir(parents=True)
    link = output / source.name
    try:
        os.link(source, link)
    except OSError:  # another disk
        shutil.copyfile(source, link)
    genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
    link.unlink()
    openvino = importlib.import_module("openvino")
    made, exact = output / "openvino_model.xml", output / "exact.xml"
    model = openvino.Core().read_model(str(made))
    put_back(model, offsets(source))
    openvino.save_model(model, str(exact), compress_to_fp16=False)
    del model  # the file is mapped
    for suffix in (".xml", ".bin"):
        exact.with_suffix(suffix).replace(made.with_suffix(suffix))


def _texts(checkpoint: Path, asked: Path, said: Path) -> None:
    """What the weights say to each prompt at full precision, the likeliest token each time; see `comparing.texts`."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    wanted = json.loads(asked.read_text(encoding="utf-8"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(checkpoint))
    model = transformers.AutoModelForCausalLM.from_pretrained(str(checkpoint), dtype=torch.float32)
    found = []
    for prompt in wanted["prompts"]:
        if tokenizer.chat_template:
            messages = [{"role": "user", "content": prompt}]
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
        else:
            ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.no_grad():
            made = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=wanted["tokens"]
            )
        new = [number for number in made[0, ids.shape[1] :].tolist() if number not in tokenizer.all_special_ids]
        tokens = [tokenizer.decode([number]) for number in new]
        found.append({"text": "".join(tokens), "tokens": tokens, "prompt_tokens": int(ids.shape[1])})
    said.write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
