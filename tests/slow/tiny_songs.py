"""`python tests/slow/tiny_songs.py FOLDER [KIND …]`, in an environment with torch and diffusers: tiny song models.

A folder for each pipeline that the engine `diffusers` runs, with random weights: what they make is noise of the right
shape. The rates and the ratios of latent frames to samples are those of the real models where they cost nothing.
"""

from __future__ import annotations

import string
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.tiny_genai import write_tokenizer  # noqa: E402

VOCABULARY = 258


def make(folder: Path, kinds: list[str] | None = None) -> dict[str, Path]:
    """Writes the folders and returns them by kind."""
    import torch

    made = {}
    for kind in kinds or KINDS:
        torch.manual_seed(0)
        place = folder / kind
        pipe = KINDS[kind](folder)
        _fill(pipe)
        pipe.save_pretrained(str(place), safe_serialization=True)
        pipe.scheduler.save_pretrained(str(place / "scheduler"))  # which one pipeline leaves out
        made[kind] = place
    return made


def _fill(pipe: Any) -> None:
    """What begins as zero would let nothing through, and every seed would sound the same."""
    import torch

    for model in pipe.components.values():
        for parameter in model.parameters() if hasattr(model, "parameters") else ():
            if not parameter.any():
                torch.nn.init.normal_(parameter.data, std=0.05)


def words(folder: Path) -> Any:
    """Bytes as tokens."""
    from transformers import PreTrainedTokenizerFast

    place = folder / "bytes"
    if not place.is_dir():
        place.mkdir(parents=True)
        write_tokenizer(place)
    return PreTrainedTokenizerFast(
        tokenizer_file=str(place / "tokenizer.json"),
        pad_token="<|im_end|>",
        eos_token="<|im_end|>",
        model_max_length=64,
    )


def _oobleck(rate: int) -> Any:
    from diffusers import AutoencoderOobleck

    return AutoencoderOobleck(
        encoder_hidden_size=8,
        decoder_channels=8,
        decoder_input_channels=8,
        audio_channels=2,
        sampling_rate=rate,
        downsampling_ratios=[2, 4, 4, 6, 10],
        channel_multiples=[1, 1, 1, 1, 1],
    )


def _t5(kind: str = "T5") -> Any:
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCABULARY, d_model=32, d_ff=37, d_kv=8, num_heads=1, num_layers=2, pad_token_id=257
    )
    return getattr(transformers, f"{kind}EncoderModel")(config)


def ace_step(folder: Path, turbo: bool = True) -> Any:
    """ACE-Step 1.5: Qwen3 reads, a transformer with a part for lyrics and one for timbre denoises."""
    import torch
    from diffusers import AceStepPipeline, AceStepTransformer1DModel, FlowMatchEulerDiscreteScheduler
    from diffusers.pipelines.ace_step.modeling_ace_step import AceStepConditionEncoder
    from transformers import Qwen3Config, Qwen3Model

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, **heads}
    condition = AceStepConditionEncoder(
        **sizes,
        text_hidden_dim=32,
        timbre_hidden_dim=8,
        num_lyric_encoder_hidden_layers=2,
        num_timbre_encoder_hidden_layers=2,
    )
    torch.nn.init.normal_(condition.null_condition_emb)
    return AceStepPipeline(
        vae=_oobleck(48_000),
        text_encoder=Qwen3Model(Qwen3Config(vocab_size=VOCABULARY, num_hidden_layers=2, **sizes)),
        tokenizer=words(folder),
        transformer=AceStepTransformer1DModel(
            **sizes,
            num_hidden_layers=4,
            in_channels=24,
            audio_acoustic_hidden_dim=8,
            is_turbo=turbo,
            model_version="turbo" if turbo else "base",
        ),
        condition_encoder=condition,
        scheduler=FlowMatchEulerDiscreteScheduler(num_train_timesteps=1, shift=1.0),
    )


def ace_step_base(folder: Path) -> Any:
    """The one that takes guidance."""
    return ace_step(folder, turbo=False)


def stable_audio(folder: Path) -> Any:
    """Stable Audio Open: T5 reads; always as many latent frames."""
    from diffusers import (
        CosineDPMSolverMultistepScheduler,
        StableAudioDiTModel,
        StableAudioPipeline,
        StableAudioProjectionModel,
    )

    return StableAudioPipeline(
        vae=_oobleck(44_100),
        text_encoder=_t5(),
        projection_model=StableAudioProjectionModel(
            text_encoder_dim=32, conditioning_dim=32, min_value=0, max_value=512
        ),
        tokenizer=words(folder),
        transformer=StableAudioDiTModel(
            sample_size=92,
            in_channels=8,
            out_channels=8,
            num_layers=3,
            attention_head_dim=4,
            num_attention_heads=2,
            num_key_value_attention_heads=2,
            cross_attention_dim=32,
            cross_attention_input_dim=32,
            time_proj_dim=32,
            global_states_input_dim=64,
        ),
        scheduler=CosineDPMSolverMultistepScheduler(
            solver_order=2, prediction_type="v_prediction", sigma_data=1.0, sigma_schedule="exponential"
        ),
    )


def stable_audio_3(folder: Path) -> Any:
    """Stable Audio 3: T5Gemma reads, SAME decodes."""
    from diffusers import AutoencoderSAME, FlowMatchEulerDiscreteScheduler, StableAudio3DiTModel, StableAudio3Pipeline
    from diffusers.pipelines.stable_audio_3.modeling_stable_audio_3 import StableAudio3DurationEmbedder
    from transformers import T5GemmaConfig, T5GemmaEncoderModel

    part: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
    part |= {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": VOCABULARY, "pad_token_id": 257}
    config = T5GemmaConfig(encoder=part, decoder=part, is_encoder_decoder=False, vocab_size=VOCABULARY)
    return StableAudio3Pipeline(
        vae=AutoencoderSAME(
            patch_size=64,
            encoder_channels=16,
            encoder_c_mults=[2],
            encoder_strides=[16],
            encoder_transformer_depths=[2],
            latent_dim=8,
            dim_heads=8,
        ),
        text_encoder=T5GemmaEncoderModel(config),
        tokenizer=words(folder),
        duration_embedder=StableAudio3DurationEmbedder(output_dim=32, fourier_dim=16),
        transformer=StableAudio3DiTModel(
            io_channels=8,
            embed_dim=32,
            depth=3,
            num_heads=4,
            cond_token_dim=32,
            global_cond_dim=32,
            local_add_cond_dim=9,
            timestep_features_dim=16,
            num_memory_tokens=4,
        ),
        scheduler=FlowMatchEulerDiscreteScheduler(stochastic_sampling=True),
    )


def audioldm2(folder: Path) -> Any:
    """AudioLDM 2: CLAP and T5 read, GPT-2 goes on from them, a U-Net denoises, a vocoder sounds."""
    import transformers as t
    from diffusers import (
        AudioLDM2Pipeline,
        AudioLDM2ProjectionModel,
        AudioLDM2UNet2DConditionModel,
        AutoencoderKL,
        DDIMScheduler,
    )

    marks = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *string.ascii_lowercase]
    length: dict[str, Any] = {"model_max_length": 64}
    text = {"vocab_size": VOCABULARY, "hidden_size": 8, "intermediate_size": 37, "num_attention_heads": 1}
    text |= {"num_hidden_layers": 2, "pad_token_id": 1, "projection_dim": 8}
    audio: dict[str, Any] = {"spec_size": 8, "window_size": 4, "num_mel_bins": 8, "intermediate_size": 37}
    audio |= {"depths": [1, 1], "num_attention_heads": [1, 1], "num_hidden_layers": 1, "hidden_size": 192}
    audio |= {"projection_dim": 8, "patch_size": 2, "patch_stride": 2, "patch_embed_input_channels": 4}
    clap = t.ClapModel(t.ClapConfig(text_config=text, audio_config=audio, projection_dim=16))
    gpt2 = t.GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_head=1, n_layer=2, n_positions=99)
    gpt2.max_new_tokens = 8
    hifigan = t.SpeechT5HifiGanConfig(
        model_in_dim=8,
        sampling_rate=16_000,
        upsample_initial_channel=16,
        upsample_rates=[5, 4, 8],
        upsample_kernel_sizes=[11, 8, 16],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
        normalize_before=False,
    )
    return AudioLDM2Pipeline(
        vae=AutoencoderKL(
            block_out_channels=[8, 16, 16],
            in_channels=1,
            out_channels=1,
            norm_num_groups=8,
            down_block_types=["DownEncoderBlock2D"] * 3,
            up_block_types=["UpDecoderBlock2D"] * 3,
            latent_channels=4,
        ),
        text_encoder=clap,
        text_encoder_2=_t5(),
        projection_model=AudioLDM2ProjectionModel(text_encoder_dim=16, text_encoder_1_dim=32, langauge_model_dim=16),
        language_model=t.GPT2LMHeadModel(gpt2),
        tokenizer=t.RobertaTokenizer(vocab={mark: n for n, mark in enumerate([*marks, "Ġ"])}, merges=[], **length),
        tokenizer_2=t.T5Tokenizer(vocab=[*((mark, -1.0) for mark in [*marks, "▁"])], extra_ids=0, **length),
        feature_extractor=t.ClapFeatureExtractor(feature_size=8, hop_length=7900),
        unet=AudioLDM2UNet2DConditionModel(
            block_out_channels=(8, 16),
            layers_per_block=1,
            norm_num_groups=8,
            sample_size=32,
            in_channels=4,
            out_channels=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=((None, 16, 32), (None, 16, 32)),
        ),
        scheduler=DDIMScheduler(
            beta_start=0.0015, beta_end=0.0195, beta_schedule="scaled_linear", clip_sample=False, set_alpha_to_one=False
        ),
        vocoder=t.SpeechT5HifiGan(hifigan),
    )


def longcat(folder: Path) -> Any:
    """LongCat AudioDiT: UMT5 reads, one channel of sound."""
    from diffusers import (
        FlowMatchEulerDiscreteScheduler,
        LongCatAudioDiTPipeline,
        LongCatAudioDiTTransformer,
        LongCatAudioDiTVae,
    )

    return LongCatAudioDiTPipeline(
        vae=LongCatAudioDiTVae(
            channels=8,
            c_mults=[1, 1, 1, 1, 1],
            strides=[2, 4, 4, 8, 8],
            latent_dim=8,
            encoder_latent_dim=16,
            downsampling_ratio=2048,
        ),
        text_encoder=_t5("UMT5"),
        tokenizer=words(folder),
        transformer=LongCatAudioDiTTransformer(dit_dim=32, dit_depth=3, dit_heads=4, dit_text_dim=32, latent_dim=8),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0, invert_sigmas=True),
    )


KINDS: dict[str, Callable[[Path], Any]] = {
    "ace-step": ace_step,
    "ace-step-base": ace_step_base,
    "stable-audio": stable_audio,
    "stable-audio-3": stable_audio_3,
    "audioldm2": audioldm2,
    "longcat": longcat,
}

if __name__ == "__main__":
    for name, place in make(Path(sys.argv[1]), sys.argv[2:] or None).items():
        print(name, place, flush=True)
