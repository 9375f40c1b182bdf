"""Responses of a real server to generated requests match /openapi.json.

Schemathesis makes the requests from the description, right ones and wrong ones. `TOUCHSTONE_API_EXAMPLES` (8 for each
route unless set) and `TOUCHSTONE_API_COVERAGE=1` (each boundary of each member) make more by hand.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from requests.adapters import HTTPAdapter
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.result import Ok

from backend.common.config.settings import load_settings
from backend.manager import ModelManager
from backend.server.app import create_app
from tests.chaos.service import TINY
from tests.hub_server import HubServer, Repository
from tests.service import Server, start_server

EXAMPLES = int(os.environ.get("TOUCHSTONE_API_EXAMPLES", "8"))
COVERAGE = os.environ.get("TOUCHSTONE_API_COVERAGE") == "1"
NOWHERE = "http://127.0.0.1:9"  # whatever a request asks to be fetched is not
SSE = "text/event-stream"
# Values that fit the description may still be refused: a name of nothing that there is, two members that exclude each
# other. The others of the left-out checks are about signing in and about the order of requests.
LEFT_OUT = ("positive_data_acceptance", "missing_required_header", "use_after_free", "ensure_resource_availability")

load_all_checks()
api = schemathesis.openapi.from_dict(
    create_app(ModelManager(load_settings({"storage.data_dir": "nowhere"}, {}))).openapi(),
    config=schemathesis.Config.from_dict({"phases": {"coverage": {"enabled": COVERAGE}}}),
)
turn = itertools.count()
left_out: Any = CHECKS.get_by_names(list(LEFT_OUT))


class Bounded(HTTPAdapter):
    """Reads of a stream of events what comes first, and leaves: some never end."""

    def send(self, request: Any, *args: Any, **more: Any) -> requests.Response:
        """The answer, with the first bytes of a stream as its body."""
        answer = super().send(request, *args, **{**more, "stream": True, "timeout": 60})
        if answer.headers.get("Content-Type", "").startswith(SSE):
            first = next(answer.iter_content(4096), b"")
            answer._content = first[: first.rfind(b"\n\n") + 2]
            answer._content_consumed = True
            answer.close()
        return answer


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("described")
    config = folder / "config.yaml"
    config.write_text(f"models: {{tiny: {{path: {TINY}}}}}\ndefault_models: {{text: tiny}}\ntext: {{max_tokens: 8}}\n")
    names = ("HTTPS_PROXY", "HTTP_PROXY", "PIP_INDEX_URL", "UV_INDEX_URL")
    environ = {**dict.fromkeys(names, NOWHERE), "NO_PROXY": "127.0.0.1", "HF_HUB_CACHE": str(folder / "cache")}
    with HubServer({"maker/Zero-0-GGUF": Repository({"zero.Q8_0.gguf": b"GGUF"}, licence="mit")}) as hub:
        running = start_server(folder / "data", "--config", str(config), environ={**environ, "HF_ENDPOINT": hub.url})
        running.http.get("/api/devices", params={"wait_s": 60})
        yield running
        running.stop(signal.SIGKILL)


@pytest.fixture(scope="module")
def known(served: Server) -> dict[str, str]:
    """Names of things that there are, so that not every address leads nowhere."""
    job = served.generate(task="music", options={"bars": 8, "form": "reel"})
    assert job.get("status") == "done", job
    return {
        "job_id": job["id"],
        "name": job["output"]["artifacts"][0]["name"],
        "model_id": "tiny",
        "device_id": "cpu",
    }


def answers_test(method: str, path: str) -> Callable[..., None]:
    """Return the test of one operation: every answer to generated requests is one that the description has."""

    @api.include(method=method, path=path).parametrize()
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def test(case: schemathesis.Case[Any], served: Server, known: dict[str, str]) -> None:
        if case.method != "DELETE" and "/runtimes/" not in case.operation.path and next(turn) % 2:
            case.path_parameters.update({name: known[name] for name in case.path_parameters if name in known})
        with requests.Session() as session:
            session.trust_env = False
            session.mount("http://", Bounded())
            answer = case.call(base_url=served.url, session=session)
            case.validate_response(answer, excluded_checks=left_out)

    made: Callable[..., None] = test
    return made


# One test function per operation. Schemathesis gives all operations of one function the same id, and a run in several
# processes keeps one test per id.
OPERATIONS = [result.ok() for result in api.get_all_operations() if isinstance(result, Ok)]
for operation in OPERATIONS:
    label = f"{operation.method.upper()} {operation.path}"
    globals()[f"test_every_answer_is_one_that_the_description_has[{label}]"] = answers_test(
        operation.method, operation.path
    )


def test_each_operation_has_a_test_of_its_answers() -> None:
    paths = api.raw_schema["paths"]
    described = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    tests = [name for name in globals() if name.startswith("test_every_answer_is_one_that_the_description_has[")]
    assert {name.partition("[")[2].removesuffix("]") for name in tests} == described
    assert len(described) >= 35


def test_every_route_is_described_with_the_shape_of_what_it_gives(served: Server) -> None:
    described = served.http.get("/openapi.json").json()
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            for status, answer in route["responses"].items():
                content = answer.get("content", {})
                if int(status) < 300 and status != "204" and "application/json" in content:
                    schema = content["application/json"]["schema"]
                    assert "$ref" in schema or schema.get("required"), f"{method} {path} {status}: say what it gives"
                if int(status) >= 400:
                    assert len(content) == 1, f"{method} {path} {status}"


def test_after_all_that_the_server_is_well(served: Server) -> None:
    health = served.http.get("/api/health").json()
    assert health["status"] == "ok", health
    log = served.log.read_text()
    assert "Traceback" not in log and "unhandled exception" not in log, log[-3000:]
