"""Stacks that compute wrong numbers in one data type, for one shape, late or after a synchronization; and neighbours.

Their cards compute in bfloat16, as torch prefers it, unless a plan has `bf16: False`. Four engines load: `transformers`
and `musicgen` need that data type, `adapter` and `torch` need only float32.
"""

from __future__ import annotations

from typing import Any

from tests.faulty_stacks.cases.case import CARD, CRASH, DIRECTML, READY, WRONG_REMEDY, Case

ENGINES = ("torch", "transformers", "tokenizers", "soundfile", "mido")
TEXT_ONLY = ENGINES[:3]
ALL, FLOAT32_ONLY = ["adapter", "musicgen", "torch", "transformers"], ["adapter", "torch"]
LARGE, MANY_ROWS, LONG = {"bytes": 1 << 20}, {"rows": 256}, {"inner": 4096}
NO_SOFTMAX = ["RuntimeError", "\"softmax_lastdim_kernel_impl\" not implemented for 'Half'"]
NOT_IMPLEMENTED = ["RuntimeError", "\"addmm_impl_cpu_\" not implemented for 'Half'"]


def card(**plan: Any) -> dict[str, Any]:
    """Return the plan of a card."""
    return {"cards": [CARD], **plan}


def spoilt(
    op: str, how: str, argument: Any = 0, dtype: str | None = None, when: dict[str, int] | None = None, **plan: Any
) -> dict[str, Any]:
    """Return the plan of a card with one wrong operation, in one data type or all, for some results or all."""
    return card(spoil={op: [how, argument, dtype, when or {}]}, **plan)


def raising(point: str, kind: str, text: str, **plan: Any) -> dict[str, Any]:
    """Return the plan of a card where a call raises an exception."""
    return card(at={point: [["raise", [kind, text]]]}, **plan)


def loses(variant: str, dtype: str, plan: dict[str, Any], words: str, verdict: str = "results are wrong") -> Case:
    """Return a card that is ready without the engines that need a data type."""
    pattern = rf"{dtype} {verdict} on this device \(.*{words}"
    remedy = "Use another engine" if "not supported" in verdict else "Update the device's driver and the runtime"
    return Case(
        "data types",
        f"{dtype} {variant}",
        plan,
        **READY,
        packages=ENGINES,
        stated_category="numbers",
        also={
            "engines": FLOAT32_ONLY,
            "unusable": {dtype: pattern},
            "note": rf"{pattern}.*\): musicgen, transformers not offered\.",
            "lacks": {
                name: rf"{pattern}.*\): {name} computes in {dtype}\. {remedy}" for name in ("transformers", "musicgen")
            },
        },
    )


def broken(variant: str, plan: dict[str, Any], reason: str, remedy: str = WRONG_REMEDY, **more: Any) -> Case:
    """Return a card that is not offered."""
    return Case(
        "numbers", variant, plan, reason=reason, remedy=remedy, packages=ENGINES, stated_category="numbers", **more
    )


def sound(variant: str, plan: dict[str, Any], **also: Any) -> Case:
    """Return a card that differs from others and is ready for every engine."""
    return Case(
        "sound numbers",
        variant,
        plan,
        **READY,
        packages=ENGINES,
        stated_category="control",
        also={"engines": ALL, "note": "^$", **also},
    )


BFLOAT16 = [
    loses("halved", "bfloat16", spoilt("matmul", "scale", 0.5, "bfloat16"), r"MatMul .*all are 0\.(?:5|499)\d* times"),
    loses("with a NaN", "bfloat16", spoilt("matmul", "one_nan", 7, "bfloat16"), "MatMul bfloat16 returned 1 of"),
    loses("without the last row", "bfloat16", spoilt("matmul", "last_row", 0, "bfloat16", MANY_ROWS), "each row"),
    loses("without the last tile", "bfloat16", spoilt("matmul", "last_tile", 0, "bfloat16", MANY_ROWS), "each row"),
    loses("in results beyond 1 MB", "bfloat16", spoilt("matmul", "one_off", -9, "bfloat16", LARGE), "1031×16×520"),
    loses("in long sums of products", "bfloat16", spoilt("matmul", "one_off", 3, "bfloat16", LONG), "1×4096×8"),
    loses("late", "bfloat16", spoilt("matmul", "scale", 2, "bfloat16", {"after": 25}), "MatMul"),
    loses("in linear layers", "bfloat16", spoilt("linear", "one_off", 2, "bfloat16"), "second result differs"),
    loses(
        "changed by a synchronization",
        "bfloat16",
        spoilt("matmul", "settle", 1, "bfloat16", MANY_ROWS),
        "the first result, read after a synchronization, differs",
    ),
    loses("softmax", "bfloat16", spoilt("softmax", "fill", "nan", "bfloat16"), "Softmax bfloat16 returned"),
    loses("softmax slightly", "bfloat16", spoilt("softmax", "scale", 0.9, "bfloat16"), "Softmax bfloat16 was off"),
    loses("layer norm", "bfloat16", spoilt("layer_norm", "scale", 0.9, "bfloat16"), "LayerNorm bfloat16 was off"),
    loses("RMS norm", "bfloat16", spoilt("rms_norm", "one_nan", 9, "bfloat16"), "RMSNorm bfloat16 returned 1"),
    loses("means", "bfloat16", spoilt("mean", "scale", 0.8, "bfloat16"), "Mean of 4096 bfloat16 was off"),
    loses("sums", "bfloat16", spoilt("sum", "one_off", 1, "bfloat16"), "Sum"),
    loses("embeddings", "bfloat16", spoilt("index_select", "turned", 0, "bfloat16"), "Gather bfloat16 was off"),
    loses("attention without its mask", "bfloat16", spoilt("mask", "ignored", 0, "bfloat16"), "Attention, causal"),
    loses(
        "attention halved",
        "bfloat16",
        spoilt("scaled_dot_product_attention", "scale", 0.5, "bfloat16"),
        "Attention, causal bfloat16 was off",
    ),
    loses(
        "not implemented",
        "bfloat16",
        raising("matmul:bfloat16", "RuntimeError", "\"addmm\" not implemented for 'BFloat16'"),
        "not implemented for 'BFloat16'",
        "is not supported",
    ),
    loses(
        "attention not implemented",
        "bfloat16",
        raising("scaled_dot_product_attention:bfloat16", "RuntimeError", "not implemented for 'BFloat16'"),
        "Attention, causal: not implemented",
        "is not supported",
    ),
    loses(
        "refused by a library",
        "bfloat16",
        raising("matmul:bfloat16", "RuntimeError", "CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling cublasGemmEx"),
        "INVALID_VALUE",
        "fails",
    ),
    broken(
        "bfloat16 crashes",
        card(at={"matmul:bfloat16": [["signal", "SIGSEGV"]]}),
        "computing on cuda:0 in bfloat16: it was killed by SIGSEGV",
        CRASH,
    ),
    broken(
        "bfloat16 breaks the card",
        raising("matmul:bfloat16", "RuntimeError", "CUDA error: an illegal memory access was encountered"),
        "in bfloat16: .*illegal memory access",
        "restart the machine",
        layer="driver",
    ),
    Case(
        "numbers",
        "no engine is left",
        spoilt("matmul", "scale", 0.5, "bfloat16"),
        stage="measured",
        reason="No engine can compute on this device: bfloat16 results are wrong",
        remedy="Update the device's driver and the runtime",
        packages=TEXT_ONLY,
        stated_category="numbers",
        also={"lacks": {"transformers": "transformers computes in bfloat16"}},
    ),
]
FLOAT16 = [
    loses("halved", "float16", spoilt("matmul", "scale", 0.5, "float16", bf16=False), r"all are 0\.(?:5|499)\d* times"),
    loses(
        "with the last row", "float16", spoilt("matmul", "last_row", 7, "float16", MANY_ROWS, bf16=False), "each row"
    ),
    loses(
        "not implemented",
        "float16",
        raising("matmul:float16", *NOT_IMPLEMENTED, bf16=False),
        "not implemented for 'Half'",
        "is not supported",
    ),
    loses(
        "softmax not implemented",
        "float16",
        raising(
            "softmax:float16", "RuntimeError", "\"softmax_lastdim_kernel_impl\" not implemented for 'Half'", bf16=False
        ),
        "softmax_lastdim",
        "is not supported",
    ),
]
FLOAT32 = [
    broken(
        "the last row", spoilt("matmul", "last_row", 0, None, MANY_ROWS), "MatMul .*, each row float32 was off .* 1 of"
    ),
    broken("the last tile", spoilt("matmul", "last_tile", 0, "float32", MANY_ROWS), "each row float32 was off"),
    broken("one entry of 1 MB", spoilt("matmul", "one_off", 7, None, LARGE), "each row float32 was off .* 1 of 523"),
    broken("long sums of products", spoilt("matmul", "one_off", 0, "float32", LONG), "MatMul 1×4096×8 float32"),
    broken("a late NaN", spoilt("matmul", "one_nan", 0, "float32", {"after": 30}), "float32 returned 1 of"),
    broken("a synchronization", spoilt("matmul", "settle", 1, None, MANY_ROWS), "after a synchronization, differs"),
    broken("a mask that is ignored", spoilt("mask", "ignored"), "Attention, causal float32 was off"),
    broken("layer norm", spoilt("layer_norm", "one_off", 5), "LayerNorm float32 was off"),
    broken("rounded inputs", card(arithmetic="tf32"), "MatMul float32 was off"),
]
AFTERWARDS = [
    broken(
        "fallen off the bus after the proof",
        raising("mem_get_info", "RuntimeError", "CUDA error: GPU has fallen off the bus"),
        "reading the free memory of cuda:0: .*fallen off the bus",
        "Restart the machine",
        layer="driver",
    ),
    broken(
        "unknown error after the proof",
        raising("mem_get_info", "RuntimeError", "CUDA error: unknown error"),
        "reading the free memory of cuda:0: .*unknown error",
        "nvidia_uvm",
        layer="driver",
    ),
    broken(
        "killed after the proof",
        card(at={"mem_get_info": [["signal", "SIGSEGV"]]}),
        "reading the free memory of cuda:0: it was killed by SIGSEGV",
        CRASH,
    ),
]
SOUND = [
    sound("inputs rounded as torch allows", card(arithmetic="tf32", precision="high")),
    sound("tiny numbers become 0", card(arithmetic="flushes")),
    sound("sums in parts of 16 bits", card(arithmetic="splits")),
    sound("emulated bfloat16 is wrong and unused", spoilt("matmul", "scale", 0.5, "bfloat16", bf16=False)),
    sound("float16 is missing and unused", raising("matmul:float16", *NOT_IMPLEMENTED)),
    sound("an old torch without attention", card(lacks=["scaled_dot_product_attention", "rms_norm", "linear"])),
    sound("an old torch without bfloat16", card(lacks=["bfloat16"], bf16=False)),
    sound(
        "no convolution of 16 bits",
        raising("conv2d:bfloat16", "RuntimeError", "GET was unable to find an engine to execute this computation"),
    ),
    sound(
        "free memory is not reported",
        raising("mem_get_info", "RuntimeError", "The device doesn't support querying the available free memory."),
    ),
]
ADAPTER: dict[str, Any] = {"cuda": None, "cards": [], "adapters": ["Intel(R) Iris(R) Xe Graphics"]}
DIRECTML_TYPES = [
    Case(
        "numbers",
        "DirectML float16",
        ADAPTER | {"spoil": {"matmul": ["scale", 0.5, "float16"]}},
        **READY,
        device="directml:0",
        packages=(*DIRECTML, *ENGINES[1:]),
        stated_category="numbers",
        also={"engines": FLOAT32_ONLY, "lacks": {"transformers": "MatMul .*: transformers computes in float16"}},
    ),
    Case(
        "sound numbers",
        "DirectML lacks operations",
        ADAPTER
        | {
            "at": {
                f"{op}:{dtype}": [["raise", ["RuntimeError", f"The operator 'aten::{op}' is not currently supported"]]]
                for op in ("softmax", "conv2d", "index_select")
                for dtype in ("float32", "float16")
            }
        },
        **READY,
        device="directml:0",
        packages=(*DIRECTML, *ENGINES[1:]),
        stated_category="control",
        also={"engines": ALL},
    ),
]
CASES = [*BFLOAT16, *FLOAT16, *FLOAT32, *AFTERWARDS, *SOUND, *DIRECTML_TYPES]
