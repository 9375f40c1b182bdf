"""Collect the errors of the browser's console during a test."""

from __future__ import annotations

import re

from playwright.sync_api import ConsoleMessage, Dialog


class Console:
    def __init__(self) -> None:
        self.errors: list[str] = []
        self.expected: list[str] = []

    def expect(self, pattern: str) -> None:
        """Chromium logs each refused or cut request as an error, also where the page handles it."""
        self.expected.append(pattern)

    def message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def dialog(self, dialog: Dialog) -> None:
        self.errors.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def unexpected(self) -> list[str]:
        return [error for error in self.errors if not any(re.search(pattern, error) for pattern in self.expected)]
