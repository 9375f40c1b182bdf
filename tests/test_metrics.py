"""/metrics counts what happened, and the dashboard and alert rules use only existing metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from backend.manager.metrics import MEDIA_TYPE
from tests.service import ROOT, Server

MONITORING = ROOT / "docs" / "monitoring"


def figures(server: Server) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    answer = server.http.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"] == MEDIA_TYPE
    families = text_string_to_metric_families(answer.text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def labelled(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def generate(server: Server, **more: Any) -> dict[str, Any]:
    body = {"prompt": "Say hello.", "options": {"max_tokens": 6, "temperature": 0}, **more}
    answer: dict[str, Any] = server.http.post("/api/generate", json=body, timeout=60).json()
    return answer


def test_what_ended_is_counted_by_device_task_and_ending(server: Server) -> None:
    before = figures(server)
    done = generate(server)
    elsewhere = generate(server, device="cuda:0")  # there is none here, and the policy is the CPU
    failed = generate(server, prompt="word " * 6000)
    after = figures(server)

    def grown(name: str, **labels: str) -> float:
        key = labelled(name, **labels)
        return after.get(key, 0) - before.get(key, 0)

    assert done["status"] == elsewhere["status"] == "done" and failed["code"] == "context_length_exceeded"
    tokens = done["receipt"]["counts"]["tokens"] + elsewhere["receipt"]["counts"]["tokens"]
    assert grown("touchstone_jobs_total", device="cpu", task="text", status="done") == 2
    assert grown("touchstone_jobs_total", device="cpu", task="text", status="error") == 1
    assert grown("touchstone_tokens_total", device="cpu", task="text") == tokens
    assert grown("touchstone_fallbacks_total", device="cuda:0", reason="device_not_ready") == 1
    assert grown("touchstone_first_token_seconds_count", device="cpu", task="text") == 2
    assert grown("touchstone_job_seconds_count", device="cpu", task="text") == 2


def test_what_is_so_now_is_told(server: Server) -> None:
    generate(server)
    now = figures(server)
    health = server.http.get("/api/health").json()
    assert now[labelled("touchstone_device_state", device="cpu", state="ready")] == 1
    assert now[labelled("touchstone_device_state", device="cpu", state="broken")] == 0
    assert now[labelled("touchstone_queue_length", hardware="cpu:0")] == 0
    assert now[labelled("touchstone_live_jobs", status="running")] == 0
    assert now[labelled("touchstone_info", version=health["version"])] == 1
    assert 0 < now[labelled("touchstone_uptime_seconds")] <= health["uptime_s"]
    assert now[labelled("touchstone_proof_seconds", device="cpu")] > 0
    # Another test of this file may have left a worker of its own in the shared server.
    workers = [value for (name, _), value in now.items() if name == "touchstone_worker_memory_bytes"]
    assert workers and min(workers) > 10_000_000
    assert now[labelled("process_resident_memory_bytes")] > 10_000_000


def _expressions(file: Path) -> list[str]:
    if file.suffix == ".json":
        return [target["expr"] for panel in json.loads(file.read_text())["panels"] for target in panel["targets"]]
    return [rule["expr"] for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


def _selected(node: Any) -> set[str]:
    """Names of the series in an expression, by walking its tree."""
    if isinstance(node, promql_parser.VectorSelector):
        return {node.name} if node.name else set()
    names: set[str] = set()
    for part in ("expr", "vector_selector", "lhs", "rhs", "args"):
        inner = getattr(node, part, None)
        for item in inner if isinstance(inner, list) else [inner]:
            names |= _selected(item) if item is not None and not isinstance(item, str) else set()
    return names


@pytest.mark.parametrize("name", ["grafana.json", "alerts.yaml"])
def test_the_dashboard_and_the_alerts_ask_for_series_that_there_are(server: Server, name: str) -> None:
    generate(server, device="cuda:0")
    known = {name for name, _ in figures(server)} | {"up"}  # Prometheus' own
    expressions = _expressions(MONITORING / name)
    assert len(expressions) >= 5
    for expression in expressions:
        selected = _selected(promql_parser.parse(expression))
        assert selected and selected <= known, expression
