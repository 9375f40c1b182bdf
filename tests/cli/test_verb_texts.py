"""What the verbs print, and which arguments they refuse: tables, lines of jobs and runtimes, inputs, exit codes."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from backend.cli.commands import jobs, music, onnx, runtimes, stems
from backend.cli.commands._device_flags import add_devices, device_keys
from backend.cli.commands._model_table import search_page
from backend.cli.commands._model_table import table as model_table
from backend.cli.commands.generate import _test_model_note, finite, receipt_line
from backend.cli.main import main
from backend.cli.verbs import table, unknown_verb, verb_summaries
from backend.common.errors import Configuration, Validation


@pytest.mark.parametrize("verb", sorted(verb_summaries()))
def test_an_unknown_flag_is_wrong_usage_for_every_verb(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--no-such-flag"])
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


WRONG_USAGE = [
    "generate",
    "generate --device",
    "generate x --temperature warm",
    "generate x --fallback perhaps",
    "music --parallel --sequential x",
    "models add",
    "models dance",
    "onnx",
    "onnx run",
    "onnx quantize x --to int8",
    "onnx quantize x --to int3 --out y",
    "onnx bench x --runs many",
    "runtimes install",
    "runtimes install a b",
    "stems only-one",
    "jobs --limit few",
    "serve --port high",
]


@pytest.mark.parametrize("line", WRONG_USAGE)
def test_wrong_usage_ends_with_2_and_names_the_argument(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert "error:" in printed.err
    assert printed.out == ""


def test_cancelling_no_job_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "--cancel"]) == 2
    assert "needs a job's id" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999"])
def test_a_number_without_a_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a finite number"):
        finite(text)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {"device": "auto", "fallback": "cpu"}),
        (["--device", "cuda:0"], {"device": "cuda:0", "fallback": "cpu"}),
        (["--device", "a", "--device", "b"], {"devices": ["a", "b"], "fallback": "cpu"}),
        (["--engine", "torch", "--fallback", "never"], {"device": "auto", "engine": "torch", "fallback": "never"}),
    ],
)
def test_one_device_and_several_are_different_keys(words: list[str], expected: dict[str, Any]) -> None:
    parser = argparse.ArgumentParser()
    add_devices(parser, "", "")
    assert device_keys(parser.parse_args(words)) == expected


RECEIPT: dict[str, Any] = {
    "used": "cuda:0",
    "asked": "cuda:0",
    "engine": "llama.cpp",
    "rate": {"value": 12.345, "unit": "tokens/s"},
    "placement": {"evidence": "25 of 25 layers"},
}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({}, "ran on cuda:0 with llama.cpp, 12.3 tokens/s; 25 of 25 layers"),
        ({"asked": "auto"}, "ran on cuda:0 (asked: auto) with llama.cpp, 12.3 tokens/s; 25 of 25 layers"),
        ({"rate": None, "placement": None}, "ran on cuda:0 with llama.cpp"),
        ({"used": None, "rate": None}, "ran on unknown (asked: cuda:0) with llama.cpp; 25 of 25 layers"),
    ],
)
def test_a_receipt_is_one_line_with_what_is_known(change: dict[str, Any], line: str) -> None:
    assert receipt_line(RECEIPT | change) == line


def job(**changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"id": "j1", "status": "done", "task": "text", "receipt": None, "request": {}, "model": "m"}
    return facts | changes


@pytest.mark.parametrize(
    ("change", "title"),
    [
        ({"request": {"prompt": "Hello"}}, "Hello"),
        ({"request": {"messages": [{"content": "first"}, {"content": "last"}]}}, "last"),
        ({"request": {"messages": []}}, "m"),
        ({"model": None}, ""),
        ({"request": {"prompt": "x" * 500}}, "x" * 60),
    ],
)
def test_a_job_is_listed_by_what_was_asked(change: dict[str, Any], title: str) -> None:
    assert jobs._line(job(**change)).split("  ")[-1].strip() == title


def test_a_prompt_cannot_break_the_line_or_steer_the_terminal() -> None:
    line = jobs._line(job(request={"prompt": "a\nb\x1b[31m"}))
    assert line.isprintable()


MODEL: dict[str, Any] = {
    "id": "m",
    "task": "text",
    "state": "ready",
    "bytes": 1_000_000,
    "engines": ["llama.cpp"],
    "default": False,
    "reason": None,
    "remedy": None,
}


@pytest.mark.parametrize(
    ("model", "is_noted"), [("smollm2-135m-instruct", True), ("gemma-4-e4b-it", False), ("my-own", False)]
)
def test_an_answer_of_the_test_model_says_so(model: str, is_noted: bool) -> None:
    assert ("test model, whose answers are often wrong" in _test_model_note(model)) is is_noted


def listed(*models: dict[str, Any], **recommended: Any) -> dict[str, Any]:
    return {"models": list(models), "recommended": recommended or None}


def test_each_model_has_one_line_and_problems_follow_the_table() -> None:
    broken: dict[str, Any] = {
        "id": "a-long-name",
        "state": "broken",
        "bytes": None,
        "engines": [],
        "reason": "R.",
        "remedy": "D.",
    }
    lines = model_table(listed(MODEL | broken, MODEL | {"default": True}), False).splitlines()
    assert [line.split()[0] for line in lines] == ["ID", "a-long-name", "m", "a-long-name:"]
    column = lines[0].index("TASK")
    assert (lines[1][column:].split()[0], lines[2][column:].split()[0]) == ("text", "text")
    assert "?" in lines[1].split() and lines[1].endswith("-")
    assert lines[2].endswith("  default") and lines[3] == "a-long-name: R. D."


def test_a_table_of_no_models_is_its_head() -> None:
    assert model_table(listed(), False).split() == ["ID", "TASK", "STATE", "SIZE", "FITS", "ENGINES"]


AWAY = MODEL | {"id": "away", "state": "downloadable", "bytes": 2_147_023_008, "reason": "Not here.", "remedy": "F."}


def test_models_that_can_be_downloaded_are_listed_only_on_request() -> None:
    here = model_table(listed(MODEL, AWAY), False).splitlines()
    assert [line.split()[0] for line in here] == ["ID", "m", "1"] and "models --all`" in here[2]
    everything = model_table(listed(MODEL, AWAY), True).splitlines()
    assert [line.split()[0] for line in everything] == ["ID", "m", "away"] and "2.1 GB" in everything[2]


@pytest.mark.parametrize(
    ("fits", "shown"),
    [
        ([("cuda:0", "partly"), ("cpu", "yes")], "cpu"),
        ([("cuda:0", "partly"), ("cpu", "no")], "cuda:0 partly"),
        ([("cuda:0", "no"), ("cpu", None)], "no"),
        ([("cpu", None)], "?"),
        ([], "?"),
    ],
)
def test_the_best_fit_is_shown(fits: list[tuple[str, str | None]], shown: str) -> None:
    model = MODEL | {"fits": [{"device": device, "fits": fit} for device, fit in fits]}
    head, line = model_table(listed(model), False).splitlines()
    assert line[head.index("FITS") : head.index("ENGINES")].strip() == shown


def test_a_default_that_is_missing_is_listed_with_its_remedy() -> None:
    lines = model_table(listed(AWAY | {"default": True}), False).splitlines()
    assert lines[1].split()[:3] == ["away", "text", "downloadable"] and lines[2] == "away: Not here. F."


def test_the_recommended_model_and_the_test_model_are_marked() -> None:
    test_model = MODEL | {"details": {"test_model": True}}
    facts = {"model": "away", "name": "Away", "bytes": 2_147_023_008, "reason": "Chosen for it.", "offer": True}
    lines = model_table(listed(test_model, AWAY, **facts), True).splitlines()
    assert lines[1].endswith("  test model") and lines[2].endswith("  recommended")
    assert lines[3].startswith("Recommended for this machine: Away. Chosen for it. `") and "(2.1 GB)" in lines[3]
    assert "Recommended" not in model_table(listed(test_model, AWAY, **facts | {"offer": False}), True)


def found_file(kind: str | None, size: int | None, *fits: tuple[str, str]) -> dict[str, Any]:
    name = f"m-{kind}.gguf"
    places = [{"device": device, "fits": how, "reason": "-"} for device, how in fits]
    return {"name": name, "source": f"hf:o/r/{name}", "bytes": size, "parts": 1, "quantization": kind, "fits": places}


def found(*files: dict[str, Any], **more: Any) -> dict[str, Any]:
    facts = {"source": "hf:o/r", "name": "r", "author": "o", "downloads": 1_234_567, "likes": 4200, "licence": None}
    return {**facts, "updated_at": None, "gated": False, "page": "P", "reason": None, "files": list(files), **more}


def test_a_result_of_a_search_has_files_with_size_and_fit() -> None:
    small = found_file("Q4_K_M", 2_500_000_000, ("cpu", "no"), ("cuda:0", "yes"))
    lines = search_page([found(small, found_file(None, None))]).splitlines()
    assert lines[0] == "o/r: 1.2M downloads, 4.2k likes, licence unknown"
    assert lines[1].split() == ["QUANTIZATION", "SIZE", "FITS", "SOURCE"]
    assert lines[2].split() == ["Q4_K_M", "2.5", "GB", "cuda:0", "hf:o/r/m-Q4_K_M.gguf"]
    assert lines[3].split() == ["-", "?", "?", "hf:o/r/m-None.gguf"]
    assert lines[-1].endswith("models add hf:o/r/m-Q4_K_M.gguf`")


def test_a_gated_result_says_where_its_licence_is_accepted() -> None:
    page = search_page(
        [found(gated=True, reason="Its files are hidden.", updated_at="2026-01-02T00:00:00Z", likes=None)]
    )
    assert "Accept its licence at P first" in page and "Its files are hidden." in page
    assert "? likes, licence unknown, updated 2026-01-02" in page and "models add hf:OWNER/REPO" in page


def test_of_dozens_of_files_the_usual_ones_are_shown() -> None:
    kinds = [f"IQ{bits}_{size}" for bits in (1, 2, 3) for size in ("S", "M", "XS")]
    page = search_page([found(*(found_file(kind, 5, ("cpu", "partly")) for kind in [*kinds, "Q4_K_M", "Q8_0"]))])
    assert "Q4_K_M" in page and "IQ1_S" not in page and "and 9 more files" in page and "cpu partly" in page


def test_a_search_without_results_says_what_to_try() -> None:
    assert "fewer words" in search_page([])


RUNTIME: dict[str, Any] = {
    "name": "cuda",
    "state": "installed",
    "title": "PyTorch",
    "version": "v2",
    "previous": None,
    "bytes": 5_000_000,
    "devices": ["cuda:0"],
    "reason": None,
    "remedy": None,
    "note": None,
}


def test_runtimes_are_grouped_by_what_can_be_done_with_them() -> None:
    listing = [
        RUNTIME | {"previous": "v1"},
        RUNTIME | {"name": "bad", "state": "broken", "bytes": None, "devices": [], "reason": "No python."},
        RUNTIME | {"name": "new", "state": "installing", "bytes": None, "devices": [], "note": "Slow."},
        RUNTIME | {"name": "mac", "state": "unsupported"},
    ]
    text = runtimes.table({"runtimes": listing, "best": "new", "best_reason": "It fits."})
    assert text.splitlines() == [
        "Installed (2):",
        "  cuda: PyTorch",
        "      version v2, 5 MB, v1 to roll back to",
        "      devices: cuda:0",
        "  bad [broken]: PyTorch",
        "      No python.",
        "",
        "Can be installed (1):",
        "  new [installing]: PyTorch",
        "      Slow.",
        "",
        "Not for this machine: mac.",
        "",
        "Recommended: new. It fits.",
    ]


def test_without_runtimes_the_groups_are_empty() -> None:
    assert runtimes.table({"runtimes": []}).split("\n") == ["Installed (0):", "", "Can be installed (0):", ""]


@pytest.mark.parametrize(
    ("action", "result", "text"),
    [
        ("remove", {}, "cuda is removed."),
        ("rollback", {"version": "v1", "devices": []}, "cuda is back at version v1: no device works."),
        ("install", {"output": {"text": "ready"}}, "ready"),
    ],
)
def test_the_outcome_of_a_change_is_one_sentence(action: str, result: dict[str, Any], text: str) -> None:
    assert runtimes._summary(action, "cuda", result) == text


def test_the_cost_of_an_install_is_shown_only_before_one() -> None:
    assert runtimes._cost({"runtimes": []}, "absent") is None
    assert runtimes._cost({"runtimes": [{"name": "cuda", "version": "v1"}]}, "cuda") is None


GRAPH: dict[str, Any] = {
    "operator_sets": {"ai.onnx": 21},
    "ir_version": 10,
    "producer": "",
    "inputs": [{"name": "x", "type": "float", "kind": "tensor", "shape": [1, None, "n"]}],
    "outputs": [{"name": "y", "type": None, "kind": "sequence", "shape": None}],
    "operators": {"MatMul": 2},
    "custom_domains": ["com.example"],
    "weight_bytes": 2_500_000,
    "external": [["x.data", 1_000_000]],
}


def test_unknown_facts_of_a_graph_are_marked() -> None:
    text = "\n".join(onnx.facts(GRAPH))
    for words in ("an unnamed program", "x: float [1, ?, n]", "y: sequence [?]", "MatMul × 2", "com.example", "x.data"):
        assert words in text
    assert "elsewhere" not in text
    placed = {**GRAPH, "device": "cuda:0", "evidence": "all", "elsewhere": {"Loop": 1}, "why_elsewhere": "Unsupported."}
    assert onnx.facts(placed)[-3:] == ["cuda:0: all", "elsewhere Loop × 1", "Unsupported."]


@pytest.mark.parametrize("text", ["", "x", "=1", "="])
def test_an_input_needs_a_name_and_a_value(text: str) -> None:
    with pytest.raises(Validation, match="is not an input"):
        onnx._split_pair(text)


@pytest.mark.parametrize("text", ["n=", "n=x", "n=-1", "n=1.5"])
def test_a_dimension_needs_a_whole_number(text: str) -> None:
    with pytest.raises(Validation, match="is not a size"):
        onnx._parse_size(text)


def test_a_value_may_hold_an_equals_sign() -> None:
    assert onnx._split_pair("x=a=b") == ("x", "a=b")
    assert onnx._parse_size("n=12") == ("n", 12)


class Uploads:
    """A client that accepts files."""

    async def send_file(self, path: Path) -> str:
        if path.name == "secret":
            raise PermissionError(13, "Permission denied")
        return f"id of {path.name}"


def test_an_input_is_a_file_or_an_array(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    (tmp_path / "secret").write_bytes(b"x")
    client: Any = Uploads()

    def parsed(value: str) -> Any:
        return asyncio.run(onnx._send_or_parse(client, value))

    assert parsed(str(tmp_path / "a.png")) == "id of a.png"
    assert parsed("[[1.5]]") == [[1.5]]
    with pytest.raises(Validation, match="neither a file nor JSON"):
        parsed(str(tmp_path / "absent.png"))
    with pytest.raises(Validation, match="Permission denied"):
        parsed(str(tmp_path / "secret"))


@pytest.mark.parametrize(("agrees", "code"), [(True, 0), (False, 1)])
def test_a_check_that_differs_ends_with_1_and_names_the_node(
    capsys: pytest.CaptureFixture[str], agrees: bool, code: int
) -> None:
    output = {"name": "y", "difference": 0.5, "tolerance": 0.1, "agrees": agrees}
    first = None if agrees else {"operator": "MatMul", "node": "m1", "name": "y"}
    text = json.dumps({"agrees": agrees, "outputs": [output], "first_difference": first})
    args = argparse.Namespace(json=False, action="check")
    assert onnx._print_result({"output": {"text": text}, "receipt": RECEIPT}, args) == code
    out = capsys.readouterr().out
    assert ("DIFFERENT" in out, "MatMul" in out) == (not agrees, not agrees)


def test_tracks_of_one_name_get_folders_of_their_own(tmp_path: Path) -> None:
    tracks = [tmp_path / folder / "song.mp3" for folder in "abc"]
    for track in tracks:
        track.parent.mkdir()
        track.write_bytes(b"x")
    folders = stems._output_folders(tracks, tmp_path / "out", overwrite=False)
    assert [folder.name for folder in folders.values()] == ["song", "song-2", "song-3"]


def test_earlier_stems_are_replaced_only_on_request(tmp_path: Path) -> None:
    track, out = tmp_path / "song.mp3", tmp_path / "out"
    track.write_bytes(b"x")
    (out / "song").mkdir(parents=True)
    assert stems._output_folders([track], out, overwrite=False)
    (out / "song" / "vocals.wav").write_bytes(b"x")
    with pytest.raises(Validation, match="holds files already"):
        stems._output_folders([track], out, overwrite=False)
    assert stems._output_folders([track], out, overwrite=True) == {track: out / "song"}
    with pytest.raises(Validation, match="does not exist"):
        stems._output_folders([tmp_path / "absent.mp3"], out, overwrite=True)


@pytest.mark.parametrize(
    ("name", "is_earlier"), [("tune.wav", True), ("song-12.flac", True), ("tune", False), ("mytune.wav", False)]
)
def test_an_earlier_tune_is_not_overwritten(tmp_path: Path, name: str, is_earlier: bool) -> None:
    (tmp_path / name).write_bytes(b"x")
    if is_earlier:
        with pytest.raises(Configuration, match="holds an earlier tune"):
            music._check_folder(tmp_path)
    else:
        music._check_folder(tmp_path)
    music._check_folder(tmp_path / "absent")


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_lyrics_that_cannot_be_read_are_a_mistake_in_the_command(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "lyrics.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Configuration, match="cannot be read"):
        music._read_lyrics(file)


@pytest.mark.parametrize(("value", "expected"), [(60.0, 60), (0.5, 0.5), ("60.0", "60.0"), (None, None)])
def test_a_whole_number_is_sent_as_an_integer(value: Any, expected: Any) -> None:
    made = music._as_int(value)
    assert (made, type(made)) == (expected, type(expected))


def test_a_prompt_on_a_closed_standard_input_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    from backend.cli.commands import generate

    monkeypatch.setattr(sys, "stdin", None)
    assert generate._read_stdin() == ""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8"))
    with pytest.raises(Validation, match="not text in utf-8"):
        generate._read_stdin()


def test_every_verb_has_a_line_in_the_table() -> None:
    lines = table({"a": "first", "long-verb-name": "second"}).splitlines()
    assert lines == ["    a          first", "    long-verb-name second"]


@pytest.mark.parametrize(
    ("verb", "arguments", "hint"),
    [
        ("pull", ["--quiet", "hf:a/b"], "models add hf:a/b"),
        ("run", ["m", "it's late"], "generate --model m"),
        ("create", ["My Model.gguf"], "models add 'My Model.gguf'"),
        ("rm", [], "models remove ID"),
        ("generat", [], "generate"),
        ("", [], "--help"),
    ],
)
def test_a_wrong_verb_gets_the_command_that_was_meant(verb: str, arguments: list[str], hint: str) -> None:
    assert hint in unknown_verb(verb, arguments, ["generate", "models"])
