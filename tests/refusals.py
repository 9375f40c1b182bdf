"""Checks of error responses: a problem document with a reason and a remedy."""

from __future__ import annotations

from typing import Any

import httpx


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem document of an answer, checked."""
    assert answer.headers["content-type"] == "application/problem+json; charset=utf-8", answer.text
    problem: dict[str, Any] = answer.json()
    assert (answer.status_code, problem["status"], problem["code"]) == (status, status, code), problem
    assert problem["type"] and problem["title"]
    assert len(problem["detail"]) > 10 and problem["detail"].endswith("."), problem
    assert len(problem["remedy"]) > 10, problem
    return problem
