"""Lock files and recipes: what names a version, which wheel counts, which platform a runtime is for, what it costs."""

from __future__ import annotations

import io
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from backend.child.install.errors import explain, telling_line
from backend.child.install.orders import InstallOrder
from backend.child.install.package_index import Index, configured, environment, parse_settings
from backend.child.install.uv import Uv, find_uv
from backend.child.progress_report import ProgressReport
from backend.common.errors import Validation
from backend.runtimes.installer import buildable
from backend.runtimes.lock_files import Lock, read_lock
from backend.runtimes.recipes import Build, Recipe, costs, read_recipes, size, this_platform

FEW = settings(max_examples=60, derandomize=True, deadline=None, database=None)
PACKAGES = st.dictionaries(
    st.from_regex(r"[a-z]{1,6}", fullmatch=True),
    st.tuples(st.from_regex(r"[0-9]\.[0-9]", fullmatch=True), st.none() | st.integers(0, 10**6)),
    min_size=1,
    max_size=5,
)


def package(name: str, version: str = "1.0", *wheels: str) -> str:
    listed = ", ".join(f"{{ {wheel} }}" for wheel in wheels)
    return f'[[packages]]\nname = "{name}"\nversion = "{version}"\n' + (f"wheels = [{listed}]\n" if wheels else "")


def wheel(name: str, size_bytes: int | None = None, digest: str = "aa") -> str:
    facts = "" if size_bytes is None else f", size = {size_bytes}"
    return f'url = "https://index.example/{name}.whl", hashes = {{ sha256 = "{digest}" }}{facts}'


def lock_of(packages: dict[str, tuple[str, int | None]], names: list[str]) -> Lock:
    text = "\n".join(package(name, packages[name][0], wheel(name, packages[name][1], name)) for name in names)
    return read_lock(text, "3.12")


@FEW
@given(PACKAGES)
def test_the_order_of_packages_does_not_change_the_version(packages: dict[str, tuple[str, int | None]]) -> None:
    forward, backward = lock_of(packages, sorted(packages)), lock_of(packages, sorted(packages, reverse=True))
    assert forward.digest == backward.digest
    assert forward.packages == {name: version for name, (version, _) in packages.items()}


@FEW
@given(PACKAGES)
def test_the_download_is_the_sum_of_all_sizes_or_unknown(packages: dict[str, tuple[str, int | None]]) -> None:
    sizes = [size_bytes for _, size_bytes in packages.values()]
    known = [size_bytes for size_bytes in sizes if size_bytes is not None]
    expected = sum(known) if len(known) == len(sizes) else None
    assert lock_of(packages, list(packages)).download_bytes == expected


BASE = package("torch", "2.13", wheel("torch", 5))


@pytest.mark.parametrize(
    ("text", "python"),
    [
        (BASE, "3.13"),
        (package("torch", "2.14", wheel("torch", 5)), "3.12"),
        (package("torch", "2.13", wheel("torch", 5, "bb")), "3.12"),
        (BASE + package("numpy"), "3.12"),
    ],
)
def test_another_interpreter_version_or_content_is_another_version(text: str, python: str) -> None:
    assert read_lock(text, python).digest != read_lock(BASE, "3.12").digest


def test_the_address_of_a_wheel_does_not_change_the_version_if_its_hash_is_the_same() -> None:
    mirror = BASE.replace("index.example", "mirror.example")
    assert read_lock(mirror, "3.12").digest == read_lock(BASE, "3.12").digest


def test_the_first_wheel_counts() -> None:
    text = package("torch", "2.13", wheel("best", 7), wheel("other", 9))
    assert read_lock(text, "3.12").download_bytes == 7


def test_a_local_file_has_its_size_on_the_disk(tmp_path: Path) -> None:
    file = tmp_path / "a b.whl"
    file.write_bytes(b"x" * 11)
    text = package("torch", "2.13", f'url = "{file.as_uri()}"')
    assert read_lock(text, "3.12").download_bytes == 11
    file.unlink()
    assert read_lock(text, "3.12").download_bytes is None


def test_an_archive_and_a_package_without_files_are_accepted() -> None:
    text = '[[packages]]\nname = "own"\narchive = { url = "https://a.example/own.zip", size = 3 }\n'
    assert (read_lock(text, "3.12").download_bytes, read_lock(text, "3.12").packages) == (3, {"own": ""})
    assert read_lock("", "3.12").packages == {}


@pytest.mark.parametrize("text", ["[[packages", "packages = ]", "\x00"])
def test_a_torn_lock_file_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="."):
        read_lock(text, "3.12")


def recipe(**facts: Any) -> Recipe:
    return Recipe("Title", "MIT", ["3.11", "3.13"], **facts)


LINUX = Build(["linux-x86_64"], 1_200_000_000, 3_000_000_000, "measured")
WINDOWS = Build(["win32-x86_64", "win32-aarch64"], 50_000_000, 90_000_000, "measured")


@pytest.mark.parametrize(
    ("platform", "expected"),
    [("linux-x86_64", LINUX), ("win32-aarch64", WINDOWS), ("darwin-aarch64", None), ("linux", None), ("", LINUX)],
)
def test_a_runtime_is_built_for_the_platforms_that_it_lists(
    monkeypatch: pytest.MonkeyPatch, platform: str, expected: Build | None
) -> None:
    monkeypatch.setattr("backend.runtimes.recipes.this_platform", lambda: "linux-x86_64")
    assert recipe(builds=[LINUX, WINDOWS]).build(platform or None) == expected


@pytest.mark.parametrize(
    ("system", "machine", "expected"),
    [
        ("linux", "x86_64", "linux-x86_64"),
        ("win32", "AMD64", "win32-x86_64"),
        ("darwin", "arm64", "darwin-aarch64"),
        ("linux", "riscv64", "linux-riscv64"),
    ],
)
def test_names_of_processors_differ_by_system(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, expected: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert this_platform() == expected


def test_the_chip_is_put_into_the_requirements() -> None:
    made = recipe(requirements=["torch[{architecture}]", "numpy"])
    assert made.by_chip
    assert made.lines("gfx1100") == ["torch[gfx1100]", "numpy"]
    assert not recipe(requirements=["numpy"]).by_chip


def test_packages_of_the_base_keep_their_pins() -> None:
    (line,) = recipe(like_base=["numpy"]).lines()
    assert line.startswith("numpy") and line != "numpy"


@pytest.mark.parametrize(("count", "text"), [(0, "0 MB"), (999_000_000, "999 MB"), (1e9, "1.0 GB"), (7e9, "7.0 GB")])
def test_sizes_are_shown_in_megabytes_or_gigabytes(count: float, text: str) -> None:
    assert size(count) == text


def test_a_small_download_takes_a_minute_and_not_none() -> None:
    assert "1 min at 10 MB/s" in costs(WINDOWS)
    assert "2 min at 10 MB/s" in costs(LINUX)


LINUX_FACTS = {"platforms": ["linux-x86_64"], "download_bytes": 1, "installed_bytes": 1, "known": "x"}
VALID = {"title": "T", "licence": "MIT", "python": ["3.11", "3.13"]}


@pytest.mark.parametrize(
    "change",
    [
        {"python": ["3.11"]},
        {"python": ["3.11", "3.12", "3.13"]},
        {"python": ["3", "4"]},
        {"unknown": 1},
        {"builds": [{"platforms": ["linux-sparc"], "download_bytes": 1, "installed_bytes": 1, "known": "x"}]},
        {"builds": [{**LINUX_FACTS, "index": "https://index.example"}]},
        {"builds": [{**LINUX_FACTS, "index": {"url": "https://index.example", "packages": []}}]},
        {"builds": [{"platforms": [], "download_bytes": 0, "installed_bytes": 1, "known": "x"}]},
    ],
)
def test_a_mistake_in_a_recipe_is_found_when_it_is_read(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "mine.yaml").write_text(json.dumps(VALID))
    assert list(read_recipes(tmp_path)) == ["mine"]
    (tmp_path / "mine.yaml").write_text(json.dumps(VALID | change))
    with pytest.raises(ValidationError):
        read_recipes(tmp_path)


def test_what_cannot_be_installed_here_names_the_setting_for_an_own_environment() -> None:
    for made in (recipe(name="mine", own="its licence forbids it"), recipe(name="mine")):
        with pytest.raises(Validation, match="runtime mine") as caught:
            buildable(made)
        assert "runtimes: {mine: {python: …}}" in caught.value.remedy


@FEW
@given(st.text(max_size=200))
def test_any_output_of_pip_is_parsed_without_an_error(listing: str) -> None:
    assert all(isinstance(value, str) for value in parse_settings(listing).values())


@FEW
@given(st.dictionaries(st.sampled_from(("index-url", "proxy", "cert", "timeout")), st.text(max_size=20)))
def test_settings_are_read_as_pip_prints_them(values: dict[str, str]) -> None:
    listing = "\n".join(f"global.{key}={value!r}" for key, value in values.items())
    printed = {key: value for key, value in values.items() if len(f"x={value!r}".splitlines()) == 1}
    assert {key: parse_settings(listing).get(key) for key in printed} == printed


def test_settings_of_other_commands_of_pip_do_not_count() -> None:
    listing = "wheel.index-url='https://w.example'\nglobal.no_index='1'\nnonsense\nglobal.=1\nglobal.x=open('y')"
    assert parse_settings(listing) == {"no-index": "1"}


@pytest.mark.parametrize(
    ("settings_", "environ", "expected"),
    [
        ({"no-index": "true"}, {}, Index(["--no-index"], own=True)),
        ({"no-index": "no"}, {}, Index()),
        ({"find-links": "a b"}, {}, Index(["--find-links", "a", "--find-links", "b"], own=True)),
        ({"trusted-host": "h"}, {}, Index(["--allow-insecure-host", "h"])),
        ({"constraint": "a.txt b.txt"}, {}, Index(constraints=["a.txt", "b.txt"])),
        ({"proxy": "p"}, {"https_proxy": "mine"}, Index(environment={"HTTP_PROXY": "p"})),
        ({"cert": "c"}, {"SSL_CERT_FILE": "mine"}, Index()),
        ({"default-timeout": "9"}, {}, Index(environment={"UV_HTTP_TIMEOUT": "9"})),
        ({"timeout": "8", "default-timeout": "9"}, {}, Index(environment={"UV_HTTP_TIMEOUT": "8"})),
        ({"timeout": "8"}, {"UV_HTTP_TIMEOUT": "7"}, Index()),
        ({"index-url": "i", "proxy": "p"}, {"UV_INDEX_URL": "mine"}, Index(own=True)),
        ({"index-url": "i"}, {"UV_INDEX_URL": ""}, Index(["--default-index", "i"], own=True)),
    ],
)
def test_the_settings_of_pip_become_options_of_uv(
    settings_: dict[str, str], environ: dict[str, str], expected: Index
) -> None:
    assert configured(settings_, environ) == expected


def test_an_active_environment_does_not_reach_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", "/mine")
    monkeypatch.setenv("CONDA_PREFIX", "/mine")
    monkeypatch.setenv("KEPT", "1")
    made = environment(Index(environment={"A": "index", "B": "index"}), {"B": "own"})
    assert "VIRTUAL_ENV" not in made and "CONDA_PREFIX" not in made
    assert (made["KEPT"], made["A"], made["B"]) == ("1", "index", "own")


@FEW
@given(st.lists(st.text(max_size=30), max_size=6).map("\n".join))
def test_the_line_that_is_shown_is_short_and_without_passwords(output: str) -> None:
    line = telling_line(f"{output}\nerror: Failed to fetch https://user:secret@index.example/x")
    assert "secret" not in line
    assert len(line) <= 400
    assert explain(output, "installing", "cuda").remedy


def test_an_output_of_nothing_has_a_line_too() -> None:
    assert telling_line(" \n\n") == "no output"


def test_uv_is_run_without_progress_and_colours_and_its_signal_is_shown(tmp_path: Path) -> None:
    program = tmp_path / "uv"
    program.write_text('#!/bin/sh\necho "$@"\n[ "$1" = die ] && kill -KILL $$\nexit 3\n')
    program.chmod(0o755)
    uv = Uv(str(program), {"PATH": "/usr/bin:/bin"})
    assert uv.run(["sync"]) == (3, "sync --no-progress --color never\n")
    code, output = uv.run(["die"])
    assert code == -signal.SIGKILL
    assert output.endswith("SIGKILL")
    uv.kill()  # an ended command is nothing to kill


def test_uv_next_to_the_interpreter_is_preferred_to_that_of_the_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts, tools = tmp_path / "scripts", tmp_path / "tools" / "uv0.13.9" / "bin"
    for folder in (scripts, tools):
        folder.mkdir(parents=True)
        (folder / "uv").write_text("")
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(scripts))
    order = InstallOrder(
        name="r", folder="", cache="", tools=str(tmp_path / "tools"), uv="uv==0.13.9", index=None, installed_bytes=0
    )
    report = ProgressReport(io.StringIO())
    assert find_uv(order, report) == str(scripts / "uv")
    (scripts / "uv").unlink()
    assert find_uv(order, report) == str(tools / "uv")
