"""The page and the API behind nginx with its defaults: `python -m tests.slow.nginx --nginx PATH`.

The configuration is the one of docs/security.md in a server that also compresses: a path prefix, no changed headers.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from playwright.sync_api import sync_playwright

from backend.common.config.settings import load_settings
from backend.models import Catalogue
from backend.server.process import free_port
from tests.browser.conftest import FLAGS, NAMES
from tests.browser.touchstone_page import TouchstonePage
from tests.conftest import MODEL, STORE
from tests.service import Server, furnished, start_server, wait_for

CONFIGURATION = """
pid {folder}/nginx.pid;
error_log {folder}/error.log;
daemon off;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    gzip on;
    server {{
        listen 127.0.0.1:{port};
        location /touchstone/ {{
            proxy_pass {url}/;
        }}
    }}
}}
"""


def main() -> int:
    """0 if everything works."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nginx", required=True, help="the program")
    args = parser.parse_args()
    model = Catalogue(load_settings({"storage.data_dir": str(STORE)}, {})).resolve(MODEL).target
    with tempfile.TemporaryDirectory() as folder:
        data_dir = furnished(Path(folder) / "data", model)
        server = start_server(data_dir, environ={"TOUCHSTONE_SERVER__ALLOWED_HOSTS": '["stone.example"]'})
        port = free_port("127.0.0.1", 18080)
        configuration = Path(folder) / "nginx.conf"
        configuration.write_text(CONFIGURATION.format(folder=folder, port=port, url=server.url))
        proxy = subprocess.Popen([args.nginx, "-p", folder, "-c", str(configuration)])
        try:
            server.http.get("/api/devices", params={"wait_s": 60})
            check(server, f"http://127.0.0.1:{port}/touchstone")
            check_page(int(port or 0))
        finally:
            proxy.terminate()
            proxy.wait()
            server.stop()
    print("passed")
    return 0


def check(server: Server, url: str) -> None:
    """Call the API through the proxy as a page of `stone.example` does."""
    headers = {"Host": "stone.example", "Origin": "https://stone.example", "Sec-Fetch-Site": "same-origin"}
    with httpx.Client(headers=headers, timeout=120) as http:
        wait_for(lambda: _is_up(http, url))
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Write a long story."}],
            "max_tokens": 128,
            "stream": True,
        }
        moments = []
        with http.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200, answer.read()
            assert "content-encoding" not in answer.headers
            moments = [time.monotonic() for line in answer.iter_lines() if line.startswith("data:")]
        assert len(moments) > 20 and moments[-1] - moments[0] > 0.1, "tokens arrive one by one, not in one burst"
        assert http.head(f"{url}/api/health").status_code == 200
        assert http.get(f"{url}/api/jobs").headers["content-encoding"] == "gzip"
        foreign = http.get(f"{url}/api/jobs", headers={"Origin": "https://evil.example"})
        assert foreign.status_code == 403


def _is_up(http: httpx.Client, url: str) -> bool:
    try:
        return http.get(f"{url}/api/health").status_code == 200
    except httpx.TransportError:
        return False


def check_page(port: int) -> None:
    """Open the page and /docs in a browser that takes the proxy for `stone.example`; run a job."""
    program = next(found for name in NAMES if (found := shutil.which(name)))
    with sync_playwright() as playwright:
        resolved = "--host-resolver-rules=MAP stone.example 127.0.0.1"
        browser = playwright.chromium.launch(executable_path=program, args=[*FLAGS, resolved])
        page = browser.new_page()
        failed: list[str] = []
        page.on("response", lambda answer: failed.append(answer.url) if answer.status >= 400 else None)
        url = f"http://stone.example:{port}/touchstone"
        TouchstonePage(page, url).open().ask("Say hello.").expect_end()
        page.goto(f"{url}/docs")
        assert "chat/completions" in page.content()
        browser.close()
        assert not failed, failed


if __name__ == "__main__":
    sys.exit(main())
