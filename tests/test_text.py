"""Text generation with a real model: seeds, limits, stops across tokens, complete characters, prompts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from backend.common.types import TERMINAL, Event
from tests.refusals import refused
from tests.service import Server, follow, stream_events, text_of

CASES = Path(__file__).with_name("cases")
PROMPTS = sorted(file for file in (CASES / "prompts").iterdir() if file.name != "not_utf8.txt")
STORY = "Write a very long story about a dog."
EMOJI = [
    {"role": "user", "content": "Say 🚀🎉"},
    {"role": "assistant", "content": "🚀🎉🚀🎉🚀🎉🚀🎉"},
    {"role": "user", "content": "Say 🚀🎉"},
]
CHINESE = [
    {"role": "user", "content": "Repeat after me: 你好世界"},
    {"role": "assistant", "content": "你好世界 你好世界 你好世界"},
    {"role": "user", "content": "Repeat after me: 你好世界"},
]


def story(server: Server, **options: Any) -> dict[str, Any]:
    """A finished job; greedy unless the options say otherwise."""
    return server.generate(prompt=STORY, options={"max_tokens": 24, "temperature": 0, **options})


def tokens(server: Server, **options: Any) -> list[Event]:
    """The same as events."""
    body = {"prompt": STORY, "options": {"max_tokens": 24, "temperature": 0, **options}}
    return list(stream_events(server, body))


@pytest.fixture(scope="module")
def pieces(server: Server) -> list[str]:
    """The greedy story's tokens one by one: events may join several, so it is told in lengths of 1, 2, 3 … tokens."""
    wholes = ["", *(story(server, max_tokens=length)["output"]["text"] for length in range(1, 25))]
    return [longer[len(shorter) :] for shorter, longer in pairwise(wholes)]


# Seed and sampling


def test_the_same_seed_gives_the_same_text(server: Server) -> None:
    first, second = (story(server, temperature=1, seed=42) for _ in range(2))
    assert first["output"]["text"] == second["output"]["text"]
    assert first["receipt"]["seed"] == second["receipt"]["seed"] == 42
    assert first["receipt"]["counts"]["cached_tokens"] == 0, "a seed forbids the reuse of the cache"


def test_the_same_seed_gives_the_same_text_after_other_work_and_a_new_worker(server: Server) -> None:
    first = story(server, temperature=1, seed=7)
    story(server, temperature=1, seed=8)
    assert story(server, temperature=1, seed=7)["output"] == first["output"]
    unload = server.http.post(f"/api/models/{first['model']}/unload").json()["id"]
    server.until(unload, "done")
    assert story(server, temperature=1, seed=7)["output"] == first["output"]


def test_the_drawn_seed_of_a_receipt_can_be_used_again(server: Server) -> None:
    drawn = story(server, temperature=1, seed=None)["receipt"]["seed"]
    first, second = (story(server, temperature=1, seed=drawn) for _ in range(2))
    assert first["output"] == second["output"]


def test_other_seeds_give_other_texts(server: Server) -> None:
    texts = {story(server, temperature=1, seed=seed)["output"]["text"] for seed in range(3)}
    assert len(texts) == 3


def test_temperature_zero_is_the_same_every_time_whatever_the_seed(server: Server) -> None:
    texts = {story(server, seed=seed)["output"]["text"] for seed in (1, 2, 2**32 - 2)}
    assert len(texts) == 1


def test_top_k_one_is_greedy(server: Server) -> None:
    greedy = story(server, seed=3)["output"]["text"]
    assert story(server, temperature=1.5, top_k=1, seed=4)["output"]["text"] == greedy
    assert story(server, temperature=1.5, top_k=0, seed=4)["output"]["text"] != greedy


def test_a_tiny_top_p_is_greedy(server: Server) -> None:
    greedy = story(server, seed=3)["output"]["text"]
    assert story(server, temperature=1.5, top_p=1e-6, seed=4)["output"]["text"] == greedy


def test_a_repetition_penalty_changes_a_text_that_repeats(server: Server) -> None:
    def said(penalty: float) -> str:
        options = {"max_tokens": 12, "temperature": 0, "repetition_penalty": penalty, "seed": 1}
        return str(server.generate(messages=EMOJI, options=options)["output"]["text"])

    assert said(1.0).count("🚀") > said(2.0).count("🚀")


# Limits and the reason of the end


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_max_tokens_is_kept_and_told_as_length(server: Server, limit: int) -> None:
    job = story(server, max_tokens=limit)
    assert job["receipt"]["counts"]["tokens"] == limit
    assert job["output"]["finish_reason"] == "length"


def test_a_text_that_ends_by_itself_is_told_as_stop(server: Server) -> None:
    job = server.generate(prompt="Say hello.", options={"max_tokens": 200, "temperature": 0})
    assert job["output"]["finish_reason"] == "stop"
    assert job["receipt"]["counts"]["tokens"] < 200


def test_the_default_of_max_tokens_is_the_settings(launch: Callable[..., Server]) -> None:
    server = launch(environ={"TOUCHSTONE_TEXT__MAX_TOKENS": "5"})
    job = server.generate(prompt=STORY, options={"temperature": 0})
    assert (job["request"]["options"]["max_tokens"], job["receipt"]["counts"]["tokens"]) == (5, 5)
    schema = server.http.get("/api/models").json()["models"][0]["options_schema"]
    assert schema["properties"]["max_tokens"]["default"] == 5


def test_a_prompt_beyond_the_context_is_refused_with_both_counts(server: Server) -> None:
    body = {"prompt": "word " * 5000, "options": {"max_tokens": 1}}
    problem = refused(server.http.post("/api/generate", json=body), 400, "context_length_exceeded")
    counts = [int(word) for word in problem["detail"].replace(".", " ").split() if word.isdigit()]
    assert len(counts) == 2 and counts[0] > 5000 > counts[1] > 0
    job = problem["job"]
    assert (job["status"], job["output"]["text"]) == ("error", None)
    assert job["receipt"]["attempts"][0]["error"] == "context_length_exceeded"
    assert server.generate(prompt="Hi.", options={"max_tokens": 1})["status"] == "done"


@pytest.mark.parametrize("word", ["word ", "ж"], ids=["plain", "each letter a JSON escape"])
def test_the_longest_prompt_that_a_body_holds_does_not_end_the_worker(server: Server, word: str) -> None:
    pid = server.generate(prompt="Hi.", options={"max_tokens": 1})["receipt"]["worker_pid"]
    body = json.dumps({"prompt": word * (5_000_000 // len(word.encode()))}, ensure_ascii=False).encode()
    answer = server.http.post("/api/generate", content=body, headers={"Content-Type": "application/json"})
    refused(answer, 400, "context_length_exceeded")
    assert server.generate(prompt="Hi.", options={"max_tokens": 1})["receipt"]["worker_pid"] == pid


def test_a_text_that_reaches_the_end_of_the_context_ends_there(launch: Callable[..., Server]) -> None:
    server = launch(environ={"TOUCHSTONE_TEXT__CONTEXT_TOKENS": "256"})
    earlier = [{"role": "user", "content": "word " * 150}, {"role": "assistant", "content": "Fine."}]
    messages = [*earlier, {"role": "user", "content": STORY}]
    job = server.generate(messages=messages, options={"max_tokens": 500, "temperature": 0})
    counts = job["receipt"]["counts"]
    assert (job["status"], job["output"]["finish_reason"]) == ("done", "length")
    assert 250 <= counts["prompt_tokens"] + counts["tokens"] <= 257


# Stops


def test_a_stop_across_a_token_border_ends_the_text_before_it(server: Server, pieces: list[str]) -> None:
    whole = "".join(pieces)
    for place in range(2, 12):
        stop = pieces[place][-1:] + pieces[place + 1][:2]
        job = story(server, stop=stop)
        assert job["output"]["text"] == whole[: whole.index(stop)], stop
        assert job["output"]["finish_reason"] == "stop"


def test_a_stop_within_a_token_cuts_the_token(server: Server, pieces: list[str]) -> None:
    long = next(piece for piece in pieces[3:] if len(piece.strip()) >= 4)
    stop = long.strip()[1:-1]
    events = tokens(server, stop=stop)
    assert text_of(events) == "".join(pieces)[: "".join(pieces).index(stop)]
    assert events[-1].data["output"]["text"] == text_of(events)


def test_a_stop_over_many_tokens_is_never_shown_in_part(server: Server, pieces: list[str]) -> None:
    """What went out is never taken back: all that is shown is a beginning of the final text."""
    whole = "".join(pieces)
    stop = whole[len("".join(pieces[:4])) + 1 : len("".join(pieces[:9])) - 1]
    events = tokens(server, stop=[stop])
    final = events[-1].data["output"]["text"]
    assert final == whole[: whole.index(stop)]
    shown = ""
    for event in events:
        shown += event.data["text"] if event.event == "token" else ""
        assert final.startswith(shown)
    assert shown == final


def test_what_only_begins_like_a_stop_is_shown_after_all(server: Server, pieces: list[str]) -> None:
    whole = "".join(pieces)
    stops = [pieces[3] + pieces[4][:1] + "☃", whole[-3:] + "☃"]
    events = tokens(server, stop=stops)
    assert text_of(events) == events[-1].data["output"]["text"] == whole
    assert events[-1].data["output"]["finish_reason"] == "length"


def test_of_several_stops_the_first_in_the_text_counts(server: Server, pieces: list[str]) -> None:
    whole = "".join(pieces)
    late, early = pieces[8] + pieces[9][:2], pieces[3][-1:] + pieces[4][:3]
    assert whole.index(early) < whole.index(late)
    for stops in ([late, early, "☃"], [early, late]):
        assert story(server, stop=stops)["output"]["text"] == whole[: whole.index(early)]


def test_of_several_stops_within_one_token_the_first_counts_too(server: Server, pieces: list[str]) -> None:
    whole = "".join(pieces)
    long = next(piece.strip() for piece in pieces[3:] if len(piece.strip()) >= 4)
    for stops in ([long[1:3], long[2:4]], [long[2:4], long[1:3]]):
        assert story(server, stop=stops)["output"]["text"] == whole[: whole.index(long) + 1]


def test_a_stop_at_the_very_beginning_leaves_an_empty_text(server: Server, pieces: list[str]) -> None:
    job = story(server, stop=pieces[0])
    assert job["status"] == "done"
    assert not job["output"]["text"]
    assert job["output"]["finish_reason"] == "stop"


def test_a_stop_may_be_a_character_of_several_tokens(server: Server) -> None:
    options = {"max_tokens": 16, "temperature": 0, "stop": "🎉"}
    job = server.generate(messages=EMOJI, options=options)
    assert (job["output"]["text"], job["output"]["finish_reason"]) == ("🚀", "stop")


# Whole characters


@pytest.mark.parametrize("messages", [EMOJI, CHINESE], ids=["emoji", "Chinese"])
@pytest.mark.parametrize("limit", [2, 3, 4, 5, 6, 16])
def test_characters_of_several_tokens_come_whole_wherever_the_limit_cuts(
    server: Server, messages: list[dict[str, str]], limit: int
) -> None:
    body = {"messages": messages, "options": {"max_tokens": limit, "temperature": 0}}
    events = list(stream_events(server, body))
    sent = [event.data for event in events if event.event == "token"]
    text = "".join(piece["text"] for piece in sent)
    assert events[-1].event == "done"
    assert text == (events[-1].data["output"]["text"] or "")
    assert "\ufffd" not in text
    assert set(text) <= set("🚀🎉 你好世界")
    assert text or limit < 4
    assert sum(piece["count"] for piece in sent) <= events[-1].data["receipt"]["counts"]["tokens"] == limit
    assert any(piece["count"] > 1 for piece in sent) or not sent, "several tokens make one character"


def test_the_counts_of_the_token_events_add_up(server: Server) -> None:
    events = tokens(server)
    counted = [event.data["count"] for event in events if event.event == "token"]
    assert all(count >= 1 for count in counted)
    assert sum(counted) == events[-1].data["receipt"]["counts"]["tokens"] == 24


# Prompts of public reports: what was sent stays what it is, code point for code point


def prompt_of(file: Path) -> str:
    """The text of a file, with its line ends as they are."""
    return file.read_bytes().decode()


@pytest.mark.parametrize("file", PROMPTS, ids=lambda file: file.stem)
def test_a_strange_prompt_comes_back_as_it_was_sent(server: Server, file: Path) -> None:
    check_kept(server, prompt_of(file))


def test_a_prompt_of_all_strange_things_comes_back_as_it_was_sent(server: Server) -> None:
    check_kept(server, json.loads((CASES / "req/hard_unicode.json").read_text())["prompt"])


def check_kept(server: Server, prompt: str) -> None:
    """Sends it escaped, as UTF-8 and as a message, and reads it wherever it is shown."""
    options = {"max_tokens": 1}
    escaped = json.dumps({"prompt": prompt, "options": options})
    plain = json.dumps({"prompt": prompt, "options": options}, ensure_ascii=False)
    message = json.dumps({"messages": [{"role": "user", "content": prompt}], "options": options})
    for body in (escaped, plain, message):
        headers = {"Content-Type": "application/json", "Prefer": "respond-async"}
        answer = server.http.post("/api/generate", content=body.encode(), headers=headers)
        assert answer.status_code == 202, answer.text
        job_id = answer.json()["id"]
        if body is escaped:
            assert server.until(job_id, *TERMINAL)["status"] == "done"
        else:
            server.http.post(f"/api/jobs/{job_id}/cancel")
        shown = [
            answer.json(),
            server.until(job_id, *TERMINAL),
            server.http.get("/api/jobs?limit=1").json()["jobs"][0],
            follow(server, job_id)[-1].data,
        ]
        for request in [job["request"] for job in shown]:
            assert (request["prompt"] or request["messages"][0]["content"]) == prompt
    for word in (piece for piece in prompt.split() if len(piece) > 3):
        assert word not in server.log.read_text(), "log.prompts is off"


def test_a_null_character_cuts_nothing(server: Server) -> None:
    def counted(prompt: str) -> int:
        job = server.generate(prompt=prompt, options={"max_tokens": 1})
        return int(job["receipt"]["counts"]["prompt_tokens"])

    assert counted("before\0after all of these words") >= counted("before after all of these words")


@pytest.fixture(scope="module")
def hard_prompts() -> list[str]:
    """All strange prompts."""
    texts = [prompt_of(file) for file in PROMPTS]
    return [*texts, json.loads((CASES / "req/hard_unicode.json").read_text())["prompt"]]


def accept(server: Server, prompts: list[str]) -> None:
    """Gives the server these prompts, of which it logs each when it accepts it, and stops it."""
    for prompt in prompts:
        answer = server.http.post("/api/generate", json={"prompt": prompt}, headers={"Prefer": "respond-async"})
        assert answer.status_code == 202
    assert server.stop() == 0


def test_what_people_ask_is_in_no_log_unless_asked_for(launch: Callable[..., Server]) -> None:
    server = launch(environ={"TOUCHSTONE_LOG__LEVEL": "debug"})
    server.generate(prompt="a secret wish of mine", options={"max_tokens": 4})
    refused = server.http.post("/api/generate", json={"prompt": "another secret wish", "optoins": {}})
    assert refused.status_code == 422
    assert server.stop() == 0
    assert "job accepted" in server.log.read_text() and "secret wish" not in server.log.read_text()


def test_the_json_log_keeps_strange_prompts_and_stays_one_object_a_line(
    launch: Callable[..., Server], hard_prompts: list[str]
) -> None:
    server = launch("--json-log", environ={"TOUCHSTONE_LOG__PROMPTS": "true"})
    accept(server, hard_prompts)
    lines = [json.loads(line) for line in server.log.read_bytes().splitlines()]
    assert [line["prompt"] for line in lines if "prompt" in line] == hard_prompts
    assert all({"at", "level", "logger", "message"} <= set(line) for line in lines)


def test_the_log_for_people_shows_strange_prompts_without_obeying_them(
    launch: Callable[..., Server], hard_prompts: list[str]
) -> None:
    server = launch(environ={"TOUCHSTONE_LOG__PROMPTS": "true"})
    accept(server, hard_prompts)
    text = server.log.read_bytes().decode()
    accepted = [line for line in text.split("\n") if "job accepted" in line]
    assert len(accepted) == len(hard_prompts), "no prompt breaks out of its line"
    for character in "\x1b\x07\x08\0\r\v\f\x85\u2028\u2029\u202e\u2067\u200b\ufeff":
        assert character not in text
    for prompt, line in zip(hard_prompts, accepted, strict=True):
        assert unescaped(line).endswith(f" prompt={prompt}")


def unescaped(line: str) -> str:
    r"""Turns the log's `\x1b` and `\u202e` back; none of the prompts has a backslash of its own."""
    return "".join(characters(line))


def characters(line: str) -> Iterator[str]:
    """One character after the other."""
    widths = {"x": 2, "u": 4, "U": 8}
    place = 0
    while place < len(line):
        if line[place] == "\\" and line[place + 1] in widths:
            width = widths[line[place + 1]]
            yield chr(int(line[place + 2 : place + 2 + width], 16))
            place += 2 + width
        else:
            yield line[place]
            place += 1
