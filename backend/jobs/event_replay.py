"""What the stored events of a job amount to, for one that goes on in another server."""

from __future__ import annotations

from backend.common.types import Artifact, Event


def replay_text(events: list[Event]) -> list[str]:
    """The pieces of text since the last fallback."""
    text: list[str] = []
    for event in events:
        if event.event == "token":
            text.append(event.data["text"])
        elif event.event == "fallback":
            text.clear()
    return text


def replay_artifacts(events: list[Event]) -> list[Artifact]:
    """The files made since the last fallback."""
    made: list[Artifact] = []
    for event in events:
        if event.event == "artifact":
            made.append(Artifact(**{name: event.data[name] for name in ("name", "media_type", "bytes", "url")}))
        elif event.event == "fallback":
            made.clear()
    return made
