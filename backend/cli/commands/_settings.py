"""The settings of a verb, from its flags --config and --data-dir. Imports pydantic on the first call only."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backend.common.config.settings import Settings

DATA_DIR_HELP = "data folder: models, runtimes, jobs (default: `storage.data_dir` of the configuration)"


def settings_from(args: argparse.Namespace, **flags: object) -> Settings:
    """Return the settings for parsed flags. `flags` maps further dotted keys, with `__` for a dot, to values.

    Raises Configuration.
    """
    from backend.common.config.settings import load_settings

    named = {"config": args.config, "storage.data_dir": getattr(args, "data_dir", None)}
    return load_settings(named | {key.replace("__", "."): value for key, value in flags.items()})
