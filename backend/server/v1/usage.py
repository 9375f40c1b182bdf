"""Counts the tokens of a request: each prompt once, also with several choices, and all generated tokens."""

from __future__ import annotations

from backend.common.types import JsonObject
from backend.jobs.live_job import LiveJob


def usage_of(jobs: tuple[LiveJob, ...], per_prompt: int) -> JsonObject:
    """Return OpenAI's `usage`. Each `per_prompt` consecutive jobs have the same prompt."""
    counts = [job.receipt.counts if job.receipt else {} for job in jobs]
    prompts = counts[::per_prompt]
    prompt_tokens = sum(count.get("prompt_tokens", 0) for count in prompts)
    tokens = sum(count.get("tokens", 0) for count in counts)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": prompt_tokens + tokens,
        "prompt_tokens_details": {
            "cached_tokens": sum(count.get("cached_tokens", 0) for count in counts[::per_prompt])
        },
    }
