"""ONNX Runtime stacks that compute wrongly in one data type, one operation, one shape or from the second run on."""

from __future__ import annotations

from typing import Any

from tests.faulty_stacks.cases.case import READY, WRONG_REMEDY, Case
from tests.faulty_stacks.cases.providers import ONNX, onnx

_CARD = "CUDAExecutionProvider"


def _spoilt(**spoil: Any) -> dict[str, Any]:
    return onnx(_CARD, spoil=spoil)


def _broken(variant: str, reason: str, **spoil: Any) -> Case:
    """Return a stack that is wrong in float32: the device is refused."""
    return Case(
        "wrong numbers",
        f"ONNX, {variant}",
        _spoilt(**spoil),
        reason=f"^Wrong result: {reason}",
        remedy=WRONG_REMEDY,
        device="onnx-cuda:0",
        packages=ONNX,
    )


def _without(unusable: str, variant: str, reason: str, plan: dict[str, Any] | None = None, **spoil: Any) -> Case:
    """Return a stack that is wrong in another data type: the device is ready without it."""
    return Case(
        "wrong numbers",
        f"ONNX, {variant}",
        plan or _spoilt(**spoil),
        **READY,
        device="onnx-cuda:0",
        packages=ONNX,
        also={"unusable": {unusable: f"{unusable} results are wrong on this device .*{reason}"}},
    )


def _healthy(variant: str, plan: dict[str, Any]) -> Case:
    return Case(
        "right numbers",
        f"ONNX, {variant}",
        plan,
        **READY,
        device="onnx-cuda:0",
        packages=ONNX,
        stated_category="control",
    )


CASES = [
    _without("int4", "4-bit weights halved", "all are 0.5 times", only="MatMulNBits", how="scale", argument=0.5),
    _without("int8", "8-bit sums saturate", "MatMulInteger .*off by", only="MatMulInteger", how="clip", argument=32767),
    _without("int8", "static products off by 2", "QLinearMatMul", only="QLinearMatMul", how="shift", argument=2),
    _without("float16", "NaN in float16", "1 of 768 entries", dtype="float16", how="entry", argument="nan"),
    _without(
        "float16",
        "norms in float16 overflow",
        "RMSNorm of 4096",
        only="RMSNorm",
        dtype="float16",
        how="infinite",
    ),
    _without(
        "float16",
        "sums in float16 lose entries",
        "ReduceMean of",
        only="ReduceMean",
        dtype="float16",
        how="scale",
        argument=0.8,
    ),
    _without(
        "float16",
        "attention in float16 sees the rest of the cache",
        "Attention of a step",
        only="Attention",
        dtype="float16",
        how="unmasked",
    ),
    _without(
        "bfloat16",
        "bfloat16 halved",
        "MatMul bfloat16 .*all are 0.5 times",
        onnx(_CARD, bfloat16=True, spoil={"dtype": "bfloat16", "how": "scale", "argument": 0.5}),
    ),
    _broken("last of 256 rows and more", r"MatMul \d+×\d+×\d+ float32 .* in 1 of", how="last row", argument=256),
    _broken(
        "results beyond 1 MB", r"MatMul \d+×\d+×\d+ float32 .*all are 0.5", how="scale if larger", argument=1 << 20
    ),
    _broken("from the second run on", "MatMul float32 .*all are 0.5 times", late=2, how="scale", argument=0.5),
    _broken(
        "attention sees the rest of the cache",
        "Attention of a step float32",
        only="Attention",
        how="unmasked",
    ),
    _healthy("with bfloat16", onnx(_CARD, bfloat16=True)),
    _healthy("without bfloat16", onnx(_CARD)),
    Case(
        "right numbers",
        "ONNX, without 4-bit products",
        onnx(_CARD, rejects=["MatMulNBits", "GroupQueryAttention"]),
        **READY,
        device="onnx-cuda:0",
        packages=ONNX,
        also={"unusable": {"int4": "int4 is not supported on this device .*no kernel for MatMulNBits"}},
        stated_category="control",
    ),
]
