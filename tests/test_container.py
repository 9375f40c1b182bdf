"""A server in a container: it makes its token, keeps it, prints the address that opens the page, and lets none in."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from backend.errors import Configuration
from backend.settings import Settings
from backend.settings.schema import Server as ServerSettings
from backend.settings.schema import Storage
from backend.token_file import kept_token, token_for_calls, with_own_token
from tests.service import ROOT


def serve(data_dir: Path, *flags: str, **environ: str) -> subprocess.Popen[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TOUCHSTONE_")}
    return subprocess.Popen(
        [sys.executable, "-m", "backend", "serve", "--port", "0", "--data-dir", str(data_dir), *flags],
        cwd=ROOT,
        env={**variables, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def first_lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


def stop(process: subprocess.Popen[str]) -> str:
    process.terminate()
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    return out


def test_a_token_is_made_printed_and_kept(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    process = serve(data_dir, "--host", "0.0.0.0", "--container")
    try:
        listening, opened = first_lines(process, 2)
        assert listening.startswith("Touchstone ") and " listening on http://127.0.0.1:" in listening
        url, token = listening.split()[-1], (data_dir / "token").read_text().strip()
        assert opened == f"Open http://localhost:{url.rpartition(':')[2]}/#token={token}"
        assert len(token) >= 32
        if os.name == "posix":
            assert stat.S_IMODE((data_dir / "token").stat().st_mode) == 0o600
        with httpx.Client(base_url=url, trust_env=False) as http:
            assert http.get("/api/models").status_code == 401
            assert http.get("/api/models", headers={"Authorization": f"Bearer {token}"}).status_code == 200
            assert http.post("/api/session", json={"token": token}).status_code == 204
            assert http.get("/api/models").status_code == 200, "the cookie stands for the token"
        for words, seen in ((["models"], "smollm2"), (["devices"], "cpu")):
            command = [sys.executable, "-m", "backend", *words]
            environ = {**os.environ, "TOUCHSTONE_DATA_DIR": str(data_dir)}
            told = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
            assert seen in told.stdout, f"the command line beside it finds the token: {told.stderr}"
    finally:
        stop(process)
    again = serve(data_dir, "--host", "0.0.0.0", "--container")
    try:
        assert first_lines(again, 2)[1].endswith(f"#token={token}")
    finally:
        stop(again)


def test_a_token_of_the_user_is_not_printed(tmp_path: Path) -> None:
    process = serve(tmp_path / "data", "--host", "0.0.0.0", "--container", TOUCHSTONE_TOKEN="a-stone-and-a-streak")
    try:
        assert " listening on " in first_lines(process, 1)[0]
    finally:
        assert stop(process) == ""
    assert not (tmp_path / "data" / "token").exists()


def test_on_loopback_no_token_is_needed(tmp_path: Path) -> None:
    process = serve(tmp_path / "data", "--host", "127.0.0.1", "--container")
    try:
        url = first_lines(process, 1)[0].split()[-1]
        assert httpx.get(f"{url}/api/models", trust_env=False).status_code == 200
    finally:
        assert stop(process) == ""


def settings(data_dir: Path, token: str | None = None) -> Settings:
    return Settings(server=ServerSettings(token=token), storage=Storage(data_dir=data_dir))


def test_a_spoiled_token_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("short\n")
    assert kept_token(tmp_path) is None
    made = with_own_token(settings(tmp_path)).server.token
    assert made and kept_token(tmp_path) == made
    assert with_own_token(settings(tmp_path)).server.token == made


def test_the_user_s_token_wins_in_calls(tmp_path: Path) -> None:
    assert token_for_calls(settings(tmp_path)) is None
    made = with_own_token(settings(tmp_path)).server.token
    assert token_for_calls(settings(tmp_path)) == made
    assert token_for_calls(settings(tmp_path, "mine")) == "mine"


def test_a_data_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Configuration, match="token cannot be stored"):
        with_own_token(settings(tmp_path / "file" / "data"))
