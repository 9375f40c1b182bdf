"""Stacks that compute wrong results, on another device, slowly or without memory."""

from __future__ import annotations

from typing import Any

from tests.faulty_stacks.cases.case import CRASH, DIRECTML, READY, WRONG_REMEDY, Case, at, lie, spoil


def wrong(variant: str, plan: dict[str, Any], reason: str) -> Case:
    return Case("wrong numbers", variant, plan, reason=f"^Wrong result: {reason}", remedy=WRONG_REMEDY)


CASES = [
    wrong("scaled", spoil("matmul", "scale", 1.0001), r"MatMul float32 was off by up to .*all are 1\.000\d* times"),
    wrong("scaled by half", spoil("all", "scale", 0.5), r"MatMul float32 .*all are 0\.5 times"),
    wrong("nan", spoil("matmul", "one_nan", 7), r"MatMul float32 returned 1 of \d+ entries that are NaN"),
    wrong("infinite", spoil("matmul", "fill", "inf"), "MatMul float32 returned .* infinite"),
    wrong("zeros", spoil("matmul", "fill", 0), "MatMul float32 .*every entry is 0"),
    wrong("stale buffer", spoil("matmul", "stale"), "MatMul float32 was off by up to"),
    wrong("right only once", spoil("matmul", "once"), "MatMul .*every entry is 0"),
    Case(
        "wrong numbers",
        "float16 alone",
        spoil("matmul", "one_off", 5, "float16"),
        **READY,
        also={"unusable": {"float16": "float16 results are wrong .*MatMul float16 was off by up to .* in 1 of"}},
    ),
    wrong("one entry", spoil("matmul", "one_off", -1), "MatMul float32 was off by up to 1 in 1 of"),
    wrong("noise", spoil("matmul", "noise", 0.01), "MatMul float32 was off by up to"),
    wrong("convolution", spoil("conv2d", "turned"), "Conv2d float32 was off by up to"),
    wrong("softmax", spoil("softmax", "scale", 1.001), "Softmax float32 was off by up to"),
    wrong("sums", spoil("sum", "one_off", 3), "Sum float32 was off by up to 1 in 1 of"),
    wrong("gather", spoil("index_select", "turned"), "Gather float32 was off by up to"),
    wrong("another shape", spoil("sum", "cut"), "Sum float32 returned 23 numbers instead of 24"),
    Case("CPU passed off", "result on the cpu", lie(device="cpu"), reason="asked of cuda.*is on cpu: it ran elsewhere"),
    Case("CPU passed off", "one operation", lie(computes_on_cpu="conv2d"), reason="Conv2d .*is on cpu"),
    Case(
        "CPU passed off",
        "memory never taken",
        lie(allocator=0.0),
        reason="memory in use went from .*they are elsewhere",
    ),
    Case("CPU passed off", "half the memory", lie(allocator=0.5), reason="they are elsewhere"),
    Case("CPU passed off", "nothing moves", lie(stays=True), reason="is on cpu: it ran elsewhere"),
    Case("CPU passed off", "meta device", lie(device="meta"), reason="is on meta"),
    Case(
        "slow",
        "as a processor",
        at("matmul", "slow", 0.02),
        **READY,
        also={"note": "slower than the processor: .*GFLOP/s"},
    ),
    Case("slow", "beyond all use", at("matmul", "slow", 0.3), **READY, also={"note": "slower than the processor"}),
    Case("slow", "to import", at("import", "slow", 3.2), **READY),
    Case("slow", "to list", at("properties", "slow", 0.8), **READY),
    Case(
        "slow",
        "beyond the limit",
        at("conv2d", "slow", 3600),
        reason="computing on cuda:0: it hung: timeout after",
        remedy=CRASH,
    ),
    *(
        Case(
            "no memory", variant, at(point, *what), layer="computation", reason=words, remedy="use the device's memory"
        )
        for variant, point, what, words in [
            (
                "at the first tensor",
                "to",
                ("raise", ["OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 MiB."]),
                "out of memory",
            ),
            (
                "at the first product",
                "matmul",
                ("raise", ["RuntimeError", "CUDA error: out of memory"]),
                "out of memory",
            ),
            (
                "in a library",
                "matmul",
                ("raise", ["RuntimeError", "CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"]),
                "ALLOC_FAILED",
            ),
            ("of the machine", "to", ("raise", ["MemoryError", ""]), "MemoryError"),
            ("as an abort", "matmul", ("abort", "terminate called after throwing 'std::bad_alloc'"), "bad_alloc"),
        ]
    ),
    Case(
        "DirectML",
        "CPU passed off",
        {"cuda": None, "cards": [], "adapters": ["Intel(R) Iris(R) Xe Graphics"], "place": {"device": "cpu"}},
        reason="is on cpu",
        device="directml:0",
        packages=DIRECTML,
    ),
]
