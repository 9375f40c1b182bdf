"""Names of settings, variables and flags: what was probably meant, where a value comes from, and odd values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common.config.settings import check_exposure, is_loopback, load_settings
from backend.common.config.settings.names import (
    all_keys,
    entry_type,
    hint_of,
    hints,
    nearest,
    nearest_variable,
    takes_text,
    variable,
)
from backend.common.config.settings.schema import OwnModel, Settings, parse_size, with_home
from backend.common.config.settings.sources import Layer, read_environment, read_file, read_flags
from backend.common.errors import Configuration

FEW = settings(max_examples=50, derandomize=True, database=None, deadline=None)


def refusal(text: str, tmp_path: Path) -> Configuration:
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(Configuration) as caught:
        load_settings({}, {}, tmp_path)
    return caught.value


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        (("server", "prot"), "server.port"),
        (("text", "slot"), "text.slots"),
        (("port",), "server.port"),
        (("data_dir",), "storage.data_dir"),
        (("sever",), "server"),
        (("models", "stone", "pth"), "models.stone.path"),
        (("SERVER", "HOST"), "server.host"),
        (("unlikely_thing",), None),
    ],
)
def test_a_misspelled_key_names_the_one_that_was_meant(path: tuple[str, ...], meant: str | None) -> None:
    assert nearest(path) == meant


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TOUCHSTONE_SERVER_PORT", "TOUCHSTONE_SERVER__PORT"),
        ("touchstone_tokn", "TOUCHSTONE_TOKEN"),
        ("TOUCHSTONE_CONFG", "TOUCHSTONE_CONFIG"),
        ("TOUCHSTONE_ZZZZZZZZZZZZ", None),
    ],
)
def test_a_misspelled_variable_names_the_one_that_was_meant(name: str, meant: str | None) -> None:
    assert nearest_variable(name) == meant


def test_every_key_has_a_type_and_a_variable_of_its_own() -> None:
    assert len({variable(key) for key in all_keys()}) == len(all_keys())
    for key in all_keys():
        assert hint_of(tuple(key.split("."))) is not None, key


@pytest.mark.parametrize("path", [("no",), ("server", "no"), ("server", "port", "no"), ("models", "x", "no"), ("",)])
def test_a_path_that_is_no_setting_has_no_type(path: tuple[str, ...]) -> None:
    assert hint_of(path) is None


def test_only_settings_that_are_strings_take_a_text_as_it_is() -> None:
    textual = {key for key in all_keys() if takes_text(hint_of(tuple(key.split("."))))}
    assert {"device", "server.host", "server.token", "storage.data_dir", "models.ID.path", "log.file"} <= textual
    assert not textual & {"server.port", "storage.keep_bytes", "log.json", "preload", "text.threads"}


def test_entries_of_a_mapping_have_their_own_section() -> None:
    assert entry_type(hints(Settings)["models"]) is OwnModel
    assert entry_type(hints(Settings)["preload"]) is None and entry_type(int) is None


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0B", 0),
        ("512", 512),
        ("512 MB", 512_000_000),
        ("1.5GiB", 1_610_612_736),
        ("2k", 2000),
        ("1 TB", 10**12),
        ("9007199254740993B", 9_007_199_254_740_993),
        ("0.1GB", 100_000_000),
        (" 4gib ", 4 << 30),
    ],
)
def test_sizes_are_exact(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1.GB", "1e9", "4 gigabytes", "1,5GB", "0x10", "4GB "[::-1]])
def test_other_texts_are_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="should be a size"):
        parse_size(text)


@pytest.mark.parametrize("value", [5, 1.5, None, True, [1]])
def test_sizes_that_are_no_text_are_left_to_the_next_check(value: object) -> None:
    assert parse_size(value) is value


@FEW
@given(st.text(st.sampled_from("0123456789.kMGtiB "), max_size=500))
def test_no_text_of_a_size_upsets_its_parser(text: str) -> None:
    try:
        size = parse_size(text)
        assert isinstance(size, int) and size >= 0
    except ValueError:
        pass


def test_a_size_of_hundreds_of_digits_is_answered_like_any_other_value(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"storage:\n  keep_bytes: {'9' * 400}GB\n")
    assert load_settings({}, {}, tmp_path).storage.keep_bytes > 10**400


def test_a_home_folder_is_expanded_and_an_unknown_user_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert with_home("~/models") == Path("/home/ada/models")
    assert with_home("~no-such-user-here/x") == Path("~no-such-user-here/x")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_addresses_of_this_machine_need_no_token(host: str) -> None:
    assert is_loopback(host)
    check_exposure(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "192.168.1.2", "localhost.example", "my-pc", "", "1.2.3"])
def test_any_other_address_needs_a_token(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(Configuration, match="no token is set"):
        check_exposure(host, None)
    check_exposure(host, "a token")


def test_a_layer_remembers_where_the_closest_parent_was_set() -> None:
    layer = Layer(origins={(): "config.yaml"})
    layer.put(("server", "port"), 1, "a variable")
    assert layer.origin(("server", "port")) == "a variable"
    assert layer.origin(("server", "host")) == "config.yaml"
    assert Layer().origin(("server",)) == "the configuration"


def test_a_value_below_a_single_value_is_a_contradiction() -> None:
    layer = Layer()
    layer.put(("server",), 5, "the flag --server")
    with pytest.raises(Configuration, match=r"the flag --server sets `server` to a single value"):
        layer.put(("server", "port"), 1, "a variable")


def test_a_later_layer_overrides_key_by_key_and_replaces_lists() -> None:
    base, over = Layer(), Layer()
    base.put(("server", "host"), "a", "file")
    base.put(("server", "port"), 1, "file")
    base.put(("preload",), ["x", "y"], "file")
    over.put(("server", "port"), 2, "variable")
    over.put(("preload",), ["z"], "variable")
    base.merge(over)
    assert base.data == {"server": {"host": "a", "port": 2}, "preload": ["z"]}
    assert (base.origin(("server", "host")), base.origin(("server", "port"))) == ("file", "variable")


def test_flags_that_were_not_given_override_nothing() -> None:
    layer = read_flags({"server.port": None, "config": "x.yaml", "storage.data_dir": "d", "log.json": False})
    assert layer.data == {"storage": {"data_dir": "d"}, "log": {"json": False}}
    assert layer.origin(("storage", "data_dir")) == "the flag --data-dir"


def test_variables_of_other_programs_and_empty_ones_are_left_alone() -> None:
    environ = {"TOUCHSTONES": "1", "PATH": "/bin", "TOUCHSTONE_TOKEN": "", "touchstone_port": "8001"}
    assert read_environment(environ).data == {"server": {"port": 8001}}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("TOUCHSTONE_TOKEN", "12345", "12345"),
        ("TOUCHSTONE_TOKEN", "null", None),
        ("TOUCHSTONE_DATA_DIR", "on", "on"),
        ("TOUCHSTONE_LOG__JSON", "yes", True),
        ("TOUCHSTONE_PRELOAD", "[a, b]", ["a", "b"]),
        ("TOUCHSTONE_STORAGE__KEEP_DAYS", "2.5", 2.5),
    ],
)
def test_a_variable_is_text_where_text_is_wanted_and_yaml_elsewhere(name: str, text: str, value: object) -> None:
    layer = read_environment({name: text})
    (path,) = layer.origins
    found: object = layer.data
    for key in path:
        assert isinstance(found, dict)
        found = found[key]
    assert found == value


@pytest.mark.parametrize("text", ["[a", "{", "a: *b", "'", "\t- x"])
def test_a_variable_with_broken_yaml_is_named(text: str) -> None:
    with pytest.raises(Configuration, match="TOUCHSTONE_PRELOAD is not valid YAML"):
        read_environment({"TOUCHSTONE_PRELOAD": text})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: &x [1]\nb: *x", r"line 2.*not supported"),
        ("server:\n  port: 1\n  port: 2", r"`server\.port` is set twice.*line 3"),
        ("? [a, b]\n: 1", "a key must be a plain name"),
        ("- 1\n- 2", "a list, not settings"),
        ("just words", "a single value"),
        ("server:\n\tport: 1", "spaces instead of tabs"),
        ("a: !!python/name:os.system x", "not valid YAML"),
        ("[" * 600, "not valid YAML"),
    ],
    ids=["a reference", "twice", "a list as key", "a list", "a word", "a tab", "a program", "nested deeply"],
)
def test_a_file_that_is_no_configuration_is_answered_with_the_place(tmp_path: Path, text: str, expected: str) -> None:
    error = refusal(text, tmp_path)
    assert re.search(expected, error.detail), error.detail
    assert error.remedy


def test_groups_with_only_comments_count_as_absent(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("server:\n  # port: 1\nmodels:\n  stone:\npreload:\ndevice: null\ntext:\n  threads: null\n")
    assert read_file(path).data == {"device": None, "text": {"threads": None}, "models": {}}


def test_every_line_of_the_file_is_known_as_an_origin(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("device: cpu\nserver:\n  host: x\n\n  port: 1\n")
    layer = read_file(path)
    assert layer.origin(("server", "port")).endswith("config.yaml, line 5")
    assert layer.origin(("storage", "data_dir")) == str(path)


@settings(max_examples=25, derandomize=True, database=None, deadline=None)
@given(st.text(st.sampled_from("ab: -\n[]{}&*#'\"!|>?%@`\t0\x00\ud800é"), max_size=40))
def test_any_text_is_a_configuration_or_an_error_with_a_remedy(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "config.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        assert isinstance(read_file(path).data, dict)
    except Configuration as error:
        assert error.remedy.endswith(".")
