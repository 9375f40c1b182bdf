"""Conversion steps that need large libraries. Each runs in an environment that has them: `child library_steps STEP …`.

GGUF to full precision with transformers (`gguf_file`), a plain checkpoint, the builder of ONNX Runtime GenAI; or GGUF
to OpenVINO GenAI's reader of such files.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import shutil
import sys
from pathlib import Path

from backend.child.convert.offsets import exact_offsets, restore_offsets


def main(arguments: list[str]) -> int:
    """Run a step: `read SOURCE TO`, `build CHECKPOINT TO PRECISION [KEY=VALUE …]`, `texts CHECKPOINT ASKED TO`,
    `graph SOURCE TO`, `answers ENGINE FORM OPTIONS TO`, where OPTIONS are text options as JSON.
    """
    step, *rest = arguments
    if step == "read":
        _read(Path(rest[0]), Path(rest[1]))
    elif step == "graph":
        _graph(Path(rest[0]), Path(rest[1]))
    elif step == "answers":
        from backend.child.convert import comparison

        answers = comparison.texts(rest[0], rest[1], json.loads(rest[2]))
        Path(rest[3]).write_text(json.dumps(answers, ensure_ascii=False), encoding="utf-8")
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
    # transformers does not save a model loaded from a GGUF file: move the weights into a plain model.
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
    sys.path.insert(0, str(folder))  # the builder imports modules of its folder as top-level modules
    sys.argv = [
        "builder",
        *("-i", str(checkpoint), "-o", str(output), "-p", precision, "-e", "cpu", "-c", str(output) + ".cache"),
        *("--extra_options", "hf_token=false", "prune_lm_head=true", *options),
    ]
    runpy.run_path(str(folder / "builder.py"), run_name="__main__")


def _graph(source: Path, output: Path) -> None:
    """Convert a GGUF file. The library saves its result next to the file, so a link in a separate folder is read."""
    genai = importlib.import_module("openvino_genai")
    output.mkdir(parents=True)
    link = output / source.name
    try:
        os.link(source, link)
    except OSError:  # on another disk
        shutil.copyfile(source, link)
    genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
    link.unlink()
    openvino = importlib.import_module("openvino")
    made, exact = output / "openvino_model.xml", output / "exact.xml"
    model = openvino.Core().read_model(str(made))
    restore_offsets(model, exact_offsets(source))
    openvino.save_model(model, str(exact), compress_to_fp16=False)
    del model  # the file is mapped
    for suffix in (".xml", ".bin"):
        exact.with_suffix(suffix).replace(made.with_suffix(suffix))


def _texts(checkpoint: Path, order_file: Path, output: Path) -> None:
    """Write the greedy texts of the weights at full precision to `output`; see `comparison.texts`."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    order = json.loads(order_file.read_text(encoding="utf-8"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(checkpoint))
    model = transformers.AutoModelForCausalLM.from_pretrained(str(checkpoint), dtype=torch.float32)
    answers = []
    for prompt in order["prompts"]:
        if tokenizer.chat_template:
            messages = [{"role": "user", "content": prompt}]
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
        else:
            ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.no_grad():
            generated = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=order["tokens"]
            )
        new = [number for number in generated[0, ids.shape[1] :].tolist() if number not in tokenizer.all_special_ids]
        tokens = [tokenizer.decode([number]) for number in new]
        answers.append({"text": "".join(tokens), "tokens": tokens, "prompt_tokens": int(ids.shape[1])})
    output.write_text(json.dumps(answers, ensure_ascii=False), encoding="utf-8")
