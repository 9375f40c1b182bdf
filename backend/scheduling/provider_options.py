"""The check of `devices.ID.provider_options` in the settings against the options of the device's provider."""

from __future__ import annotations

import difflib

from backend.common.config.settings import Settings
from backend.common.errors import Configuration
from backend.devices import backends, known_options, split_id


def check_provider_options(settings: Settings) -> None:
    """Raises Configuration for an unknown option of a provider, and for options of a device without a provider."""
    for device, rules in settings.devices.items():
        name = split_id(device)[0]
        if not rules.provider_options or name not in backends():
            continue
        valid = known_options(name)
        for option in rules.provider_options:
            where = f"`devices.{device}.provider_options.{option}`"
            if option == "device_id":
                raise Configuration(
                    f"{where}: the id of the device chooses the card.", f"Leave it out, or write {name}:N for card N."
                )
            if not valid:
                raise Configuration(f"{where}: {device} has no provider options.", "Leave them out.")
            if option not in valid:
                near = difflib.get_close_matches(option, valid, 1, 0.5)
                hint = f"Did you mean {near[0]}? " if near else ""
                raise Configuration(f"{where} is not a known option.", f"{hint}Known: {', '.join(valid)}.")
