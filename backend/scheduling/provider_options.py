"""`devices.ID.provider_options` of the settings, checked against what the device's provider knows."""

from __future__ import annotations

import difflib

from backend.common.config.settings import Settings
from backend.common.errors import Configuration
from backend.devices import backends, known_options, split_id


def check_provider_options(settings: Settings) -> None:
    """Raises Configuration for an option that the provider does not know, and for a device that takes none."""
    for device, rules in settings.devices.items():
        name = split_id(device)[0]
        if not rules.provider_options or name not in backends():
            continue
        known = known_options(name)
        for option in rules.provider_options:
            where = f"`devices.{device}.provider_options.{option}`"
            if option == "device_id":
                raise Configuration(
                    f"{where}: the device's own id chooses the card.", f"Leave it out, or write {name}:N for card N."
                )
            if not known:
                raise Configuration(f"{where}: {device} takes no such options.", "Leave them out.")
            if option not in known:
                near = difflib.get_close_matches(option, known, 1, 0.5)
                hint = f"Did you mean {near[0]}? " if near else ""
                raise Configuration(f"{where} is not known.", f"{hint}Known: {', '.join(known)}.")
