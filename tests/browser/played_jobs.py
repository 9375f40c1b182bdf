"""Jobs in the API's shape, for states that a healthy server does not have."""

from __future__ import annotations

from typing import Any

AT = "2026-01-02T03:04:05Z"


def receipt(**changes: Any) -> dict[str, Any]:
    whole = {
        "asked": "cpu",
        "resolved": "cpu",
        "resolved_reason": "You asked for it.",
        "used": "cpu",
        "fell_back": False,
        "reason": None,
        "engine": "llama.cpp",
        "runtime": "base",
        "hardware_id": "cpu:0",
        "placement": {
            "on_device": 1.0,
            "parts": [{"where": "cpu", "share_of_nodes": 1.0, "share_of_time": None}],
            "evidence": "buffer sizes in the log",
        },
        "attempts": [],
        "memory": {"before_bytes": None, "peak_bytes": None, "after_bytes": None},
        "versions": {},
        "times": {"queued_s": 0.0, "load_s": 0.1, "first_token_s": 0.1, "run_s": 1.0, "total_s": 1.1},
        "counts": {"prompt_tokens": 3, "tokens": 2, "cached_tokens": 0},
        "batched": False,
        "threads": 2,
        "model_file": "m.gguf",
        "chat_template": "model",
        "rate": {"value": 50.0, "unit": "tokens/s"},
        "worker_pid": 12,
    }
    return {**whole, **changes}


def job(**changes: Any) -> dict[str, Any]:
    whole = {
        "id": "played1",
        "task": "text",
        "model": "m",
        "status": "done",
        "created_at": AT,
        "started_at": AT,
        "ended_at": AT,
        "request": {"prompt": "played", "device": "cpu"},
        "output": {"text": "", "finish_reason": "stop", "artifacts": []},
        "progress": None,
        "error": None,
        "receipt": receipt(),
    }
    return {**whole, **changes}


def tokens(words: list[str], job_id: str = "played1") -> list[tuple[str, dict[str, Any]]]:
    return [("token", {"job_id": job_id, "at": AT, "text": word, "count": 1}) for word in words]
