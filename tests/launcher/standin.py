"""A fake program `backend` for the launcher's tests: it follows `plan.json` in its folder and records its calls.

Copied as backend/__main__.py into a folder of its own, together with the true launcher.
"""

import http.server
import importlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PLAN: dict[str, Any] = json.loads((ROOT / "plan.json").read_text())


def note(**facts: Any) -> None:
    with (ROOT / "notes.jsonl").open("a") as file:
        file.write(json.dumps(facts) + "\n")


class Health(http.server.BaseHTTPRequestHandler):
    began = time.monotonic()

    def do_GET(self) -> None:
        if self.path in PLAN.get("answers", {}):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(PLAN["answers"][self.path]).encode())
            return
        sick = time.monotonic() - self.began < PLAN.get("sick_s", 0)
        self.send_response(503 if sick or self.path != "/api/health" else 200)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def serve() -> int:
    if "crash" in PLAN:
        sys.stderr.write("the stand-in says why it ends\n")
        return int(PLAN["crash"])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Health)

    def end(number: int, frame: object) -> None:
        note(signal=number)
        if not PLAN.get("deaf"):
            threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    if not PLAN.get("mute"):
        print(f"Touchstone 0 listening on http://{PLAN.get('host', '127.0.0.1')}:{server.server_port}/", flush=True)
    server.serve_forever()
    return int(PLAN.get("exit", 0))


def main() -> int:
    note(arguments=sys.argv[1:], cwd=str(Path.cwd()), pid=os.getpid(), prefix=sys.prefix)
    if sys.argv[1:2] == ["serve"]:
        return serve()
    if sys.argv[1:3] == ["models", "fetch-default"]:
        print("the model is fetched")
        return int(PLAN.get("fetch", 0))
    if sys.argv[1:2] in (["devices"], ["status"]):
        ready = {"devices": [{"id": "cpu", "state": "ready"}]}
        print(json.dumps(PLAN.get("status") if sys.argv[1] == "status" else PLAN.get("devices", ready)))
        return 0
    assert importlib.import_module("ballast").WEIGHT  # the package that requirements.txt names
    sys.stdout.buffer.write(sys.stdin.buffer.read())
    return int(PLAN.get("exit", 0))


if __name__ == "__main__":
    sys.exit(main())
