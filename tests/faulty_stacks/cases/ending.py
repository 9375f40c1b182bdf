"""Stacks that end the process or hang at any point, and stacks that only print noise."""

from __future__ import annotations

from typing import Any

from tests.faulty_stacks.cases.case import CRASH, READY, Case, at


def ended(
    mechanism: str, action: str, argument: Any, how: str, remedy: str = CRASH, at_import: str | None = None
) -> list[Case]:
    """The same end of the process at five points. `at_import`: optional, the remedy at the first of them."""
    points = [
        ("at import", "import", "importing torch", "none", "library load"),
        ("when asked", "is_available", "listing cuda devices", "none", "driver"),
        ("counting", "device_count", "listing cuda devices", "none", "driver"),
        ("describing", "properties", "listing cuda devices", "none", "driver"),
        ("computing", "matmul", "computing on cuda:0", "visible", "computation"),
    ]
    return [
        Case(
            mechanism,
            variant,
            at(point, action, argument),
            "broken",
            stage,
            layer,
            f"while {what}: .*{how}",
            at_import if at_import and point == "import" else remedy,
        )
        for variant, point, what, stage, layer in points
    ]


CASES = [
    *ended("segmentation fault", "signal", "SIGSEGV", "killed by SIGSEGV"),
    *ended(
        "abort", "abort", "terminate called after throwing an instance of 'std::runtime_error'", "SIGABRT.*terminate"
    ),
    *ended(
        "illegal instruction",
        "signal",
        "SIGILL",
        "killed by SIGILL",
        "Install a build for older processors",
    ),
    *ended("hang", "hang", 3600, "it hung: timeout after", at_import="Importing torch.*supervision.probe_s"),
    Case("noise", "on stdout", at("matmul", "print", "loading kernels " * 40_000), **READY),
    Case("noise", "raw bytes", at("matmul", "write", "\x00\x00\x00\x05\xff{}\x1b[2J" * 500), **READY),
    Case("noise", "like frames", at("to", "print", '{"op":"wrong","detail":"no"}\n{"op":"end"}'), **READY),
    Case("noise", "on stderr", at("matmul", "complain", "E fatal error: all is lost\n" * 5_000), **READY),
    Case("noise", "warnings", at("is_available", "warn", "CUDA initialization: Unexpected error"), **READY),
]
