"""Stacks whose packages or libraries do not load."""

from __future__ import annotations

from tests.faulty_stacks.cases.case import CRASH, Case, at

CASES = [
    Case(
        "import error",
        "module missing",
        at("import", "raise", ["ModuleNotFoundError", "No module named 'sympy'"]),
        "unavailable",
        "none",
        "runtime package",
        "importing torch.*No module named 'sympy'",
        "reinstall it",
    ),
    Case(
        "import error",
        "name missing",
        at("import", "raise", ["ImportError", "cannot import name 'DTensor' from 'torch.distributed.tensor'"]),
        "unavailable",
        "none",
        "runtime package",
        "cannot import name 'DTensor'",
        "reinstall it",
    ),
    Case(
        "import error",
        "syntax",
        at("import", "raise", ["SyntaxError", "invalid syntax"]),
        "broken",
        "none",
        "library load",
        "while importing torch: SyntaxError: invalid syntax",
        "refresh",
    ),
    Case(
        "import error",
        "refuses",
        at("import", "raise", ["RuntimeError", "torch was built without this processor"]),
        "broken",
        "none",
        "library load",
        "while importing torch: RuntimeError",
        "refresh",
    ),
    Case(
        "import error",
        "exits",
        at("import", "exit", 3),
        "broken",
        "none",
        "library load",
        "while importing torch: it exited with code 3",
        CRASH,
    ),
    Case(
        "import error",
        "exits quietly",
        at("import", "exit", 0),
        "broken",
        "none",
        "library load",
        "while importing torch: it ended without an answer",
        CRASH,
    ),
    *(
        Case(
            "missing library",
            library,
            at("import", "raise", ["OSError", f"{library}: cannot open shared object file: No such file or directory"]),
            "unavailable",
            "none",
            layer,
            f"importing torch.*{library}",
            remedy,
        )
        for library, layer, remedy in [
            ("libcuda.so.1", "driver", "libcuda.so.1 comes with NVIDIA's driver"),
            ("libcudart.so.12", "library load", "libcudart.so.12 in the runtime's environment"),
            ("libamdhip64.so.7", "driver", "comes with AMD's ROCm"),
            ("libd3d12.so", "driver", "comes with the GPU driver of Windows"),
            ("libgomp.so.1", "library load", "libgomp1|libgomp"),
            ("libze_loader.so.1", "library load", "libze1|level-zero|libze_loader"),
        ]
    ),
    *(
        Case(
            "version mismatch",
            variant,
            at("import", "raise", [kind, text]),
            "unavailable",
            "none",
            "library load",
            words,
            remedy,
        )
        for variant, kind, text, words, remedy in [
            (
                "symbol",
                "ImportError",
                "libtorch_cpu.so: undefined symbol: _ZNK3c1010TensorImpl20is_contiguous_customE",
                "undefined symbol",
                "are incompatible",
            ),
            (
                "C library",
                "ImportError",
                "/lib/libc.so.6: version `GLIBC_2.38' not found (required by libtorch.so)",
                "GLIBC_2.38",
                "older than 2.38",
            ),
            (
                "compiler library",
                "ImportError",
                "/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found",
                "GLIBCXX",
                "are incompatible",
            ),
            (
                "NumPy",
                "ImportError",
                "numpy.core.multiarray failed: _ARRAY_API not found",
                "_ARRAY_API",
                "are incompatible",
            ),
            (
                "architecture",
                "OSError",
                "libtorch.so: wrong ELF class: ELFCLASS32",
                "wrong ELF class",
                "are incompatible",
            ),
        ]
    ),
]
