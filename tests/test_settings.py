"""Settings: their sources, precedence, and the error for every mistake."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from backend.common.config.settings import Settings, check_exposure, load_settings
from backend.common.config.settings.names import all_keys
from backend.common.config.settings.sources import read_file
from backend.common.errors import Configuration
from backend.common.installation import ROOT


def load(tmp_path: Path, text: str = "", environ: dict[str, str] | None = None, **flags: object) -> Settings:
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    return load_settings({key.replace("__", "."): value for key, value in flags.items()}, environ or {}, tmp_path)


def refusal(tmp_path: Path, text: str = "", environ: dict[str, str] | None = None, **flags: object) -> str:
    with pytest.raises(Configuration) as caught:
        load(tmp_path, text, environ, **flags)
    assert caught.value.remedy.endswith((".", "?"))
    return f"{caught.value.detail} {caught.value.remedy}"


def test_shipped_file_equals_the_defaults(tmp_path: Path) -> None:
    shipped = load_settings({"config": ROOT / "config.yaml", "storage.data_dir": tmp_path}, {})
    assert shipped == load_settings({"storage.data_dir": tmp_path}, {}, tmp_path)


def test_shipped_file_shows_every_setting() -> None:
    written = read_file(ROOT / "config.yaml").origins
    text = (ROOT / "config.yaml").read_text(encoding="utf-8")
    for key in all_keys():
        if ".ID." in key:  # these are commented examples
            assert f"{key.rsplit('.', 1)[1]}:" in text
        else:
            assert tuple(key.split(".")) in written
    for line in text.splitlines():
        if ":" in line and not line.startswith("#") and not line.endswith(":"):
            assert "#" in line, f"no comment on {line!r}"


def test_an_empty_or_absent_file_gives_the_defaults(tmp_path: Path) -> None:
    absent = load_settings({}, {}, tmp_path)
    assert (
        absent == load(tmp_path, "") == load(tmp_path, "# nothing\n") == load(tmp_path, "models:\ndevices:\nserver:\n")
    )
    assert absent.server.port == 8000
    assert absent.storage.data_dir == tmp_path / "data"
    assert absent.models_dir == tmp_path / "data" / "models"


def test_the_later_source_wins(tmp_path: Path) -> None:
    text = "server: {port: 1, host: localhost}\ntext: {threads: 3}\n"
    environ = {"TOUCHSTONE_SERVER__PORT": "2", "TOUCHSTONE_TEXT__MAX_TOKENS": "7"}
    settings = load(tmp_path, text, environ, server__port=3, device=None)
    assert (settings.server.port, settings.server.host) == (3, "localhost")
    assert (settings.text.threads, settings.text.max_tokens) == (3, 7)
    assert load(tmp_path, text, environ).server.port == 2


def test_short_forms(tmp_path: Path) -> None:
    environ = {"HOST": "::1", "PORT": "0", "TOKEN": "12345", "DEVICE": "cuda:0", "DATA_DIR": "elsewhere"}
    settings = load(tmp_path, "", {f"TOUCHSTONE_{name}": value for name, value in environ.items()})
    assert (settings.server.host, settings.server.port, settings.server.token) == ("::1", 0, "12345")
    assert settings.device == "cuda:0"
    assert settings.data_dir == tmp_path / "elsewhere"


def test_the_environment_carries_lists_nulls_and_named_entries(tmp_path: Path) -> None:
    environ = {
        "TOUCHSTONE_MODEL_FOLDERS": "[a, /b]",
        "TOUCHSTONE_DEFAULT_MODELS__TEXT": "null",
        "TOUCHSTONE_MODELS__MY-MODEL.Q4__PATH": "x.gguf",
        "TOUCHSTONE_DEVICES": "{'CUDA:0': {memory_limit: 4GB}}",
        "TOUCHSTONE_LOG__JSON": "true",
        "TOUCHSTONE_TEXT__THREADS": "",
    }
    settings = load(tmp_path, "text: {threads: 2}", environ)
    assert settings.model_folders == [tmp_path / "a", Path("/b")]
    assert settings.default_models.text is None
    assert settings.models["my-model.q4"].path == tmp_path / "x.gguf"
    assert settings.devices["cuda:0"].memory_limit == 4_000_000_000
    assert settings.log.json is True
    assert settings.text.threads == 2


def test_paths_are_relative_to_the_named_file(tmp_path: Path) -> None:
    folder = tmp_path / "Ordner mit Ümlaut 音"
    folder.mkdir()
    (folder / "c.yaml").write_text("storage: {data_dir: d}\nruntimes: {torch: {python: ../py}}\n")
    settings = load_settings({}, {"TOUCHSTONE_CONFIG": str(folder / "c.yaml")}, tmp_path)
    assert settings.data_dir == folder / "d"
    assert settings.runtimes["torch"].python == folder / "../py"


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("4GB", 4 * 10**9), ("4GiB", 4 * 2**30), ("1.5 mb", 1_500_000), ("512", 512), ("2k", 2000)]
)
def test_sizes(tmp_path: Path, text: str, size_bytes: int) -> None:
    assert load(tmp_path, f"devices: {{cpu: {{memory_limit: {text}}}}}").devices["cpu"].memory_limit == size_bytes


@pytest.mark.parametrize(
    ("text", "key", "right"),
    [
        ("sever: {port: 1}", "`sever`", "`server`"),
        ("server:\n  prot: 1", "line 2", "`server.port`"),
        ("port: 1", "`port`", "`server.port`"),
        ("data_dir: x", "`data_dir`", "`storage.data_dir`"),
        ("models:\n  a:\n    pth: x", "`models.a.pth`", "`models.a.path`"),
        ("devices: {cpu: {memory: 4GB}}", "`devices.cpu.memory`", "`devices.cpu.memory_limit`"),
        ("supervision: {silence: 1}", "`supervision.silence`", "`supervision.silence_s`"),
        ("Server: {port: 1}", "`Server`", "`server`"),
    ],
)
def test_unknown_keys_in_the_file(tmp_path: Path, text: str, key: str, right: str) -> None:
    said = refusal(tmp_path, text)
    assert key in said
    assert f"Did you mean {right}?" in said
    assert str(tmp_path / "config.yaml") in said


@pytest.mark.parametrize(
    ("variable", "right"),
    [
        ("TOUCHSTONE_PROT", "TOUCHSTONE_PORT"),
        ("TOUCHSTONE_SERVER_PORT", "TOUCHSTONE_SERVER__PORT"),
        ("TOUCHSTONE_SERVER__PRT", "TOUCHSTONE_SERVER__PORT"),
        ("TOUCHSTONE_CONFG", "TOUCHSTONE_CONFIG"),
    ],
)
def test_unknown_variables(tmp_path: Path, variable: str, right: str) -> None:
    said = refusal(tmp_path, "", {variable: "1"})
    assert variable in said
    assert f"Did you mean {right}?" in said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("server: {port: eighty}", "`server.port`"),
        ("server: {port: 70000}", "65535"),
        ("server: {port: -1}", "greater than or equal to 0"),
        ("server: {port: yes}", "not yes or no"),
        ("server: {token: 12345}", "in quotes"),
        ("server: 8000", "`server`"),
        ("server: [1]", "`server`"),
        ("queue: {limit: 0}", "greater than or equal to 1"),
        ("text: {slots: many}", "config.yaml, line 1) should be auto, or a number of at least 1"),
        ("text: {slots: true}", "should be auto, or a number of at least 1"),
        ("text: {context_tokens: 10}", "should be auto, or a number of at least 64"),
        ("text: {gpu_layers: -1}", "should be auto, or a number of at least 0"),
        ("text: {kv_cache: q5_0}", "'f16', 'q8_0' or 'q4_0'"),
        ("supervision: {load_s: .inf}", "`supervision.load_s`"),
        ("storage: {keep_days: 1e300}", "36500"),
        ("log: {level: loud}", "'debug'"),
        ("models: {a: {adapters: [{}]}}", "`models.a.adapters.0.path` is missing"),
        ("models: {'A b': {path: x}}", "`models.A b`"),
        ("models: {a: {path: 5}}", "`models.a.path`"),
        ("devices: {cpu: {memory_limit: lots}}", "512MB"),
        ("model_folders: x", "list"),
        ("device: 2001-01-01", "in quotes"),
        ('storage: {data_dir: "a\\0b"}', "null byte"),
    ],
)
def test_wrong_values(tmp_path: Path, text: str, expected: str) -> None:
    said = refusal(tmp_path, text)
    assert expected in said
    assert "line 1" in said


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"server:\n\tport: 1\n", "line 2"),
        (b"server: {port: 1\n", "not valid YAML"),
        (b"a: 1\n---\nb: 2\n", "not valid YAML"),
        (b"device: a\nserver: {port: 1}\ndevice: b\n", "line 3"),
        (b"server:\n  port: 1\n  port: 2\n", "`server.port` is set twice"),
        (b"text: &a {threads: *a}\n", "references"),
        (b"device: !!python/object:os.system x\n", "not valid YAML"),
        (b"device: !!int x\n", "not valid YAML"),
        (b"? [a]\n: b\n", "plain name"),
        (b"- a\n", "not settings"),
        (b"just words\n", "not settings"),
        (b"device: \xff\xfe\n", "UTF-8"),
        ("device: auto".encode("utf-16"), "UTF-8"),
        (b"device: \x01\n", "not valid YAML"),
        (b"[" * 5000, "not valid YAML"),
    ],
)
def test_files_that_are_not_settings(tmp_path: Path, raw: bytes, expected: str) -> None:
    (tmp_path / "config.yaml").write_bytes(raw)
    with pytest.raises(Configuration) as caught:
        load_settings({}, {}, tmp_path)
    assert expected in caught.value.detail
    assert str(tmp_path) in caught.value.detail


def test_a_byte_order_mark_is_fine(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(b"\xef\xbb\xbfdevice: cpu\r\n")
    assert load_settings({}, {}, tmp_path).device == "cpu"


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(Configuration, match="nowhere.yaml"):
        load_settings({}, {"TOUCHSTONE_CONFIG": str(tmp_path / "nowhere.yaml")}, tmp_path)
    with pytest.raises(Configuration, match="directory"):
        load_settings({"config": tmp_path}, {}, tmp_path)


def test_two_variables_for_one_setting(tmp_path: Path) -> None:
    said = refusal(tmp_path, "", {"TOUCHSTONE_PORT": "1", "TOUCHSTONE_SERVER__PORT": "2"})
    assert "TOUCHSTONE_PORT" in said
    assert "TOUCHSTONE_SERVER__PORT" in said


def test_wrong_values_name_the_variable_or_flag(tmp_path: Path) -> None:
    assert "TOUCHSTONE_PORT" in refusal(tmp_path, "", {"TOUCHSTONE_PORT": "x"})
    assert "--port" in refusal(tmp_path, "", {}, server__port="x")


def test_a_token_is_never_shown(tmp_path: Path) -> None:
    assert "geh eim" not in refusal(tmp_path, "server: {token: geh eim}")
    assert "geheim" not in repr(load(tmp_path, "server: {token: geheim}"))


def test_settings_do_not_change(tmp_path: Path) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load(tmp_path).device = "cpu"  # type: ignore[misc]


def exposure(settings: Settings) -> None:
    check_exposure(settings.server.host, settings.server.token)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_loopback_needs_no_token(tmp_path: Path, host: str) -> None:
    exposure(load(tmp_path, "", {"TOUCHSTONE_HOST": host}))


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.5", "my-machine", "127.0.0.1.example.org", "::ffff:1.2.3.4"]
)
def test_beyond_loopback_needs_a_token(tmp_path: Path, host: str) -> None:
    with pytest.raises(Configuration, match="token") as caught:
        exposure(load(tmp_path, "", {"TOUCHSTONE_HOST": host}))
    assert "TOUCHSTONE_TOKEN" in caught.value.remedy
    exposure(load(tmp_path, "", {"TOUCHSTONE_HOST": host, "TOUCHSTONE_TOKEN": "x" * 20}))
