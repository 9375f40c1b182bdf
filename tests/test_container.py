"""A server in a container: it creates and keeps its token, prints the page's address, and requires the token."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from backend.common.config.settings import Settings
from backend.common.config.settings.schema import Server as ServerSettings
from backend.common.config.settings.schema import Storage
from backend.common.errors import Configuration
from backend.server.auth_token import Token, kept_token, make_token, token_for_calls
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


def settings(data_dir: Path, token: str | None = None, host: str = "0.0.0.0") -> Settings:
    return Settings(server=ServerSettings(token=token, host=host), storage=Storage(data_dir=data_dir))


def test_a_spoiled_token_is_none_and_does_not_open_a_server_that_had_a_good_one(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("short\n")
    assert kept_token(tmp_path) is None and Token(settings(tmp_path)).value is None
    made = make_token(tmp_path)
    running = Token(settings(tmp_path))
    assert running.value == made == kept_token(tmp_path)
    (tmp_path / "token").write_text("short\n")
    assert running.value == made
    (tmp_path / "token").unlink()
    assert running.value == made


def test_the_user_s_token_wins(tmp_path: Path) -> None:
    assert token_for_calls(settings(tmp_path)) is None
    made = make_token(tmp_path)
    assert token_for_calls(settings(tmp_path)) == made
    assert token_for_calls(settings(tmp_path, "mine")) == Token(settings(tmp_path, "mine")).value == "mine"


def test_on_loopback_a_kept_token_is_not_asked_for(tmp_path: Path) -> None:
    make_token(tmp_path)
    assert Token(settings(tmp_path, host="127.0.0.1")).value is None


def test_a_data_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Configuration, match="token cannot be stored"):
        make_token(tmp_path / "file" / "data")


def token(data_dir: Path, action: str, **environ: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "TOUCHSTONE_DATA_DIR": str(data_dir), **environ}
    words = [sys.executable, "-m", "backend", "token", action]
    return subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)


def test_a_rotated_token_counts_at_once_and_the_old_one_no_more(tmp_path: Path) -> None:
    nothing = token(tmp_path / "data", "show")
    assert nothing.returncode == 1 and "token rotate" in nothing.stderr
    first = token(tmp_path / "data", "rotate").stdout.strip()
    process = serve(tmp_path / "data", "--host", "0.0.0.0")  # no container: the kept token is enough
    try:
        url = first_lines(process, 1)[0].split()[-1]
        with httpx.Client(base_url=url, trust_env=False) as http:

            def status(word: str) -> int:
                return http.get("/api/models", headers={"Authorization": f"Bearer {word}"}).status_code

            assert (status(first), status("another-word-for-it")) == (200, 401)
            assert http.post("/api/session", json={"token": first}).status_code == 204
            second = token(tmp_path / "data", "rotate").stdout.strip()
            assert second != first and token(tmp_path / "data", "show").stdout.strip() == second
            assert http.get("/api/models").status_code == 401, "the cookie of the old one is void too"
            assert (status(first), status(second)) == (401, 200)
    finally:
        stop(process)


def test_a_token_of_the_configuration_is_changed_there(tmp_path: Path) -> None:
    refusal = token(tmp_path / "data", "rotate", TOUCHSTONE_TOKEN="a-stone-and-a-streak")
    assert refusal.returncode == 1 and "TOUCHSTONE_TOKEN" in refusal.stderr
    assert not (tmp_path / "data" / "token").exists()
