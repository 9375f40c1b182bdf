"""Create interpreters with faulty packages: a folder with a `pyvenv.cfg`, Python, NumPy and the fakes."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any

PACKAGES = Path(__file__).parent / "packages"
_SITE = Path(str(importlib.util.find_spec("numpy").origin)).parents[1]  # type: ignore[union-attr]
_CACHES = shutil.ignore_patterns("__pycache__")


def make(folder: Path, plan: dict[str, Any], packages: tuple[str, ...] = ("torch",)) -> Path:
    """Create an environment with those packages and that plan. Returns its interpreter."""
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    site.mkdir(parents=True)
    (folder / "bin").mkdir()
    python = folder / "bin" / "python"
    python.symlink_to(Path(sys.executable).resolve())
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    for package in packages:
        if package == "onnxruntime":
            _changed(site / package)
        shutil.copytree(PACKAGES / package, site / package, ignore=_CACHES, dirs_exist_ok=True)
    (site / packages[0] / "plan.json").write_text(json.dumps(plan))
    if library := plan.get("library"):
        (site / packages[0] / "capi" / library).touch()
    for name in ("numpy", "numpy.libs", "flatbuffers", "packaging", "google", "jinja2", "markupsafe"):
        if (real := _SITE / name).exists():
            (site / name).symlink_to(real)
    return python


def _changed(folder: Path) -> None:
    """Link the real ONNX Runtime's files; the fake modifies it at the end of its import."""
    real = _SITE / "onnxruntime"
    (folder / "capi").mkdir(parents=True)
    for path in (*real.iterdir(), *(real / "capi").iterdir()):
        if path.name not in ("__init__.py", "capi", "__pycache__") or path.parent.name == "capi":
            (folder / path.relative_to(real)).symlink_to(path)
    text = (real / "__init__.py").read_text(encoding="utf-8")
    (folder / "__init__.py").write_text(text + "\nfrom onnxruntime import _standin\n\n_standin.apply(globals())\n")
