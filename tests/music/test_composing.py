"""The composer: exact lengths with any logits, reproducible, cancellable, with openings and the copy guard."""

from __future__ import annotations

import random

import numpy as np
import pytest

from backend.common.errors import WorkerCrashed
from backend.tasks.audio.progress import Cancelled
from backend.tasks.music import tokens
from backend.tasks.music.composer import TOKENS_MAX, compose, compose_rows
from backend.tasks.music.grid import Slot, TuneGrid
from backend.tasks.music.melody import build_melody
from backend.tasks.music.opening import read_opening
from backend.tasks.music.originality import MAX_COPY, CopyGuard, pitch_tokens, run_hashes
from backend.tasks.music.plan import FORMS, MAX_BARS, MODES, TONICS, Plan, layout
from backend.tasks.music.score import Melody
from tests.fake_decoder import FakeDecoder

REEL = Plan("reel", (4, 4), "dorian", "E", 16)


def any_plan(number: int) -> Plan:
    """Return a combination of options."""
    chance = random.Random(number)
    form = chance.choice(list(FORMS))
    return Plan(
        form,
        chance.choice(FORMS[form]),
        chance.choice(MODES),
        chance.choice(list(TONICS)),
        chance.randint(1, 40) if number % 12 else chance.randint(41, MAX_BARS),
        pickup=chance.random() < 0.7,
        temperature=chance.choice([0.0, 0.5, 1.0, 2.0]),
        top_p=chance.choice([0.5, 0.95, 1.0]),
    )


def check_exact(made: Melody, plan: Plan) -> None:
    """Check bars, grid and key against the plan."""
    bar = made.bar_ticks
    assert made.bar_starts == tuple(made.pickup_ticks + bar * number for number in range(plan.bars))
    assert made.end == made.pickup_ticks + bar * plan.bars and 0 <= made.pickup_ticks < bar
    assert plan.pickup or not made.pickup_ticks
    assert (made.form, made.meter, made.tonic, made.mode) == (plan.form, plan.meter, plan.tonic, plan.mode)
    at = 0
    for note in made.notes:
        assert note.start >= at and note.ticks > 0 and 36 <= note.pitch <= 108
        at = note.start + note.ticks
    assert at <= made.end


@pytest.mark.parametrize("number", range(24))
def test_any_controls_give_exact_tunes(number: int) -> None:
    plan = any_plan(number)
    made = compose(FakeDecoder(), plan, [number, number + 1])
    for one in made:
        check_exact(one, plan)
    # A variation is the same alone.
    assert compose(FakeDecoder(), plan, [number + 1]) == made[1:]


def test_the_sections_of_any_length_add_up() -> None:
    for bars in range(1, MAX_BARS + 1):
        tunes = layout(bars)
        sections = [section for tune in tunes for section in tune]
        assert sum(section.bars * section.times for section in sections) == bars
        assert all(section.bars <= tokens.BARS_MAX and section.times in (1, 2) for section in sections)
        assert all(len(tune) <= tokens.SECTIONS_MAX for tune in tunes)
        assert bars < 4 or min(section.bars for section in sections) >= 4


def test_repeats_are_the_same_notes() -> None:
    (made,) = compose(FakeDecoder(), Plan("jig", (6, 8), "major", "G", 32, pickup=False), [3])
    bars = [[(n.start - at, n.ticks, n.pitch) for n in made.notes if at <= n.start < at + 72] for at in made.bar_starts]
    assert made.sections == (0, 8, 16, 24)
    assert bars[:7] == bars[8:15] and bars[16:23] == bars[24:31] and bars[:8] != bars[16:24]


def test_seeds_differ_and_a_seed_repeats() -> None:
    first, second = compose(FakeDecoder(), REEL, [1, 2])
    assert first != second and [first, second] == compose(FakeDecoder(), REEL, [1, 2])


def test_progress_counts_bars_as_heard() -> None:
    heard: list[tuple[int, int]] = []

    def on_bar(done: int, total: int) -> bool:
        heard.append((done, total))
        return False

    compose(FakeDecoder(), Plan("reel", (4, 4), "major", "D", 48), [1, 2], on_bar)
    assert heard[-1] == (96, 96)
    assert [done for done, _ in heard] == sorted({done for done, _ in heard})


def test_a_stop_is_heard_at_each_token_and_each_bar() -> None:
    decoder = FakeDecoder()
    with pytest.raises(Cancelled):
        compose(decoder, REEL, [1], stop=lambda: decoder.steps == 20)
    assert decoder.steps == 20
    told: list[int] = []

    def on_bar(done: int, total: int) -> bool:
        told.append(done)
        return done >= 3

    with pytest.raises(Cancelled):
        compose(FakeDecoder(), REEL, [1], on_bar)
    assert told == [1, 2, 3]


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_device_that_gives_no_numbers_is_not_taken_at_its_word(number: float) -> None:
    class Faulty(FakeDecoder):
        def step(self, ids, sides):  # type: ignore[no-untyped-def]
            logits = super().step(ids, sides)
            if self.steps == 20:
                logits[0, 3 if number > 0 or np.isnan(number) else slice(None)] = number
            return logits

    with pytest.raises(WorkerCrashed, match="NaN or infinite"):
        compose(Faulty(), REEL, [1])


def test_a_tune_near_the_limit_is_finished_with_long_notes() -> None:
    class Restless(FakeDecoder):
        def step(self, ids, sides):  # type: ignore[no-untyped-def]
            logits = super().step(ids, sides)
            logits[:, tokens.DURATION] += 100  # nothing but the shortest notes
            return logits

    (row,) = compose_rows(Restless(), [Plan("slip jig", (9, 8), "major", "D", 47)], [1])
    assert row.slot is Slot.DONE
    assert TOKENS_MAX - 200 < 2 * len(row.events) < TOKENS_MAX


@pytest.mark.parametrize(
    "text",
    [
        "M:4/4\nK:Edor\nB>A|G2 (3EFG B2 AB|d3 B A2",
        "M:4/4\nK:Edor\nE2",
        "M:4/4\nK:Edor\nz4 E4-|E8|z8|" + "EFGA BAGF|" * 9,
        "M:4/4\nK:Edor\nB7|e8-|e5 f3|",
    ],
)
def test_an_opening_begins_the_tune_note_for_note(text: str) -> None:
    opening = read_opening(text).opening
    plan = Plan("reel", (4, 4), "dorian", "E", 16, opening=opening)
    (made,) = compose(FakeDecoder(), plan, [5])
    shift = made.pickup_ticks - opening.pickup_ticks  # an odd pickup becomes a bar that begins with a rest
    shift += 96 if shift else 0
    given = [(note.start + shift, note.pitch) for note in opening.notes]
    assert [(note.start, note.pitch) for note in made.notes][: len(given)] == given
    assert [note.ticks for note in made.notes][: len(given) - 1] == [note.ticks for note in opening.notes][:-1]
    assert len(made.notes) > len(given) and made.bars == 16


@pytest.mark.parametrize(
    ("text", "word"),
    [("M:4/4\nK:E\n" + "E8|" * 17, "longer"), ("M:4/4\nK:E\nE,,8|e'8|", "range"), ("M:4/4\nK:E\n(3EFG2 A", "rhythm")],
)
def test_an_opening_that_does_not_fit_is_refused(text: str, word: str) -> None:
    plan = Plan("reel", (4, 4), "major", "E", 16, opening=read_opening(text).opening)
    with pytest.raises(ValueError, match=word):
        compose(FakeDecoder(), plan, [5])


def test_no_long_run_of_a_known_tune_is_repeated() -> None:
    plans = [Plan("reel", (4, 4), "major", "D", 32, top_p=0.3)] * 4
    known = compose_rows(FakeDecoder(), plans, [1, 2, 3, 4])
    table = np.array(sorted({value for row in known for value in run_hashes(pitch_tokens(row))}), np.uint32)
    assert longest_copies(known, known) == [len(pitch_tokens(row)) - 1 for row in known]
    again = compose_rows(FakeDecoder(), plans, [1, 2, 3, 4], guard=CopyGuard(table))
    assert max(longest_copies(again, known)) <= MAX_COPY == 24


def longest_copies(rows: list[TuneGrid], known: list[TuneGrid]) -> list[int]:
    """Return for each tune the length of its longest run that also occurs in a known tune, in intervals."""
    text = "\n".join(steps(row) for row in known)
    found = []
    for own in map(steps, rows):
        found.append(
            max(
                length for at in range(len(own)) for length in range(len(own) - at + 1) if own[at : at + length] in text
            )
        )
    return found


def steps(row: TuneGrid) -> str:
    """Return a tune's intervals as characters."""
    own = pitch_tokens(row)
    return "".join(chr(200 + after - before) for before, after in zip(own, own[1:], strict=False))


def test_a_row_that_is_not_complete_is_no_melody() -> None:
    plan = Plan("reel", (4, 4), "major", "D", 8)
    (row,) = compose_rows(FakeDecoder(), [plan], [1])
    assert build_melody(plan, [row]).bars == 8
    with pytest.raises(ValueError):
        Plan("waltz", (3, 4), "major", "D", 8)
