"""Make tiny MusicGen models with random weights, as transformers saves them: mono, stereo, with melody.

    RUNTIME_PYTHON -m tests.slow.tiny_musicgen FOLDER

Needs torch, transformers and tokenizers, as every torch runtime has them. EnCodec's codebooks are zero until somebody
fills them, and then every seed sounds the same.
"""

from __future__ import annotations

import string
import sys
from pathlib import Path
from typing import Any

RATE, RATIOS = 8000, [5, 4, 4]  # 100 tokens a second
SIZE = 64  # of a codebook


def tokenizer_json() -> str:
    """A vocabulary of letters that ends each text as T5's does."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    letters = {mark: number for number, mark in enumerate(["<pad>", "</s>", "<unk>", *string.printable])}
    made = Tokenizer(models.WordLevel(letters, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return str(made.to_str())


def build(folder: Path, kind: str = "mono", width: int = 32, layers: int = 2) -> Path:
    """Writes one; `kind` is mono, stereo or melody."""
    import torch
    import transformers

    torch.manual_seed(7)
    channels = 2 if kind == "stereo" else 1
    text = transformers.T5Config(
        vocab_size=128, d_model=width, d_kv=16, d_ff=64, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    audio = transformers.EncodecConfig(
        sampling_rate=RATE,
        audio_channels=1,
        num_filters=8,
        upsampling_ratios=RATIOS,
        codebook_size=SIZE,
        codebook_dim=16,
        hidden_size=16,
        num_lstm_layers=1,
        target_bandwidths=[2.4],
        normalize=False,
        use_causal_conv=False,
    )
    common = {"vocab_size": SIZE, "num_hidden_layers": layers, "ffn_dim": 4 * width, "num_attention_heads": 2}
    common |= {"hidden_size": width, "num_codebooks": 4 * channels, "audio_channels": channels}
    common |= {"pad_token_id": SIZE, "bos_token_id": SIZE, "max_position_embeddings": 4096}
    if kind == "melody":
        decoder = transformers.MusicgenMelodyDecoderConfig(**common)
        config: Any = transformers.MusicgenMelodyConfig(
            text_encoder=text.to_dict(), audio_encoder=audio.to_dict(), decoder=decoder.to_dict(), chroma_length=20
        )
        model: Any = transformers.MusicgenMelodyForConditionalGeneration(config)
    else:
        decoder = transformers.MusicgenDecoderConfig(**common)
        config = transformers.MusicgenConfig(
            text_encoder=text.to_dict(), audio_encoder=audio.to_dict(), decoder=decoder.to_dict()
        )
        model = transformers.MusicgenForConditionalGeneration(config)
    for name, buffer in model.audio_encoder.named_buffers():
        if name.endswith("codebook.embed"):
            buffer.normal_()
    with torch.no_grad():  # so that it is heard, and that words and guidance matter
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and not name.startswith("audio_encoder"):
                weight.mul_(6.0)
    model.generation_config = transformers.GenerationConfig(
        pad_token_id=SIZE, bos_token_id=SIZE, decoder_start_token_id=SIZE, do_sample=True, guidance_scale=3.0
    )
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, safe_serialization=True)
    (folder / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
    (folder / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\nRandom weights.\n", encoding="utf-8")
    return folder


if __name__ == "__main__":
    for each in ("mono", "stereo", "melody"):
        print(build(Path(sys.argv[1]) / f"tiny-musicgen-{each}", each))
