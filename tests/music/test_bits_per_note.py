"""The bits per note of the released weights on held-out tunes from the installed music21."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np
import onnxruntime as ort
import pytest

from backend.tasks.music import tokens
from backend.tasks.music.abc_fields import AbcError
from backend.tasks.music.abc_reader import read_tunes
from backend.tasks.music.decoder_onnx import HostDecoder
from backend.tasks.music.network import graph_name
from backend.tasks.music.tools.train.corpus import COLLECTIONS, label
from backend.tasks.music.tools.train.dataset import RELEASED, Encoded, encode
from backend.tasks.music.tools.train.normalise import normalise
from backend.tasks.music.tools.train.prepare import corpus_folder
from backend.tasks.music.weights import DATA, read_weights

SAMPLE = (
    "airdsAirs 0033 The Recruiting Officer.",
    "airdsAirs 0311 Duncan Gray.",
    "airdsAirs 0406 My Father said that he would hire to me a man.",
    "airdsAirs 0458 Ardkinglass's Delight.",
    "airdsAirs 0549 Kentish March.",
    "oneills1850 1186 The Bank of Ireland",
    "oneills1850 1202 The Bunch of Green Rushes",
    "oneills1850 1356 I Have No Money",
    "oneills1850 1778 McElligott's Fancy",
    "oneills1850 543 Devil Take the Wars",
    "oneills1850 63 FARMER HAYES",
    "oneills1850 70 THE LITTLE BLACK ROSE",
    "oneills1850 779 The Humors of Cappa.",
    "oneills1850 790 Ballahaboy Fair.",
    "oneills1850 795 Out on the Ocean.",
    "oneills1850 832 Our Own Little Isle",
)


def held_out(names: set[str]) -> Iterator[Encoded]:
    """Return the held-out tunes of the corpus as tokens."""
    numbers = {name.split()[1] for name in names}
    for collection in COLLECTIONS:
        for file in sorted((corpus_folder() / collection).glob("*.abc")):
            for block in re.split(r"(?m)^(?=X:)", file.read_text(encoding="utf-8", errors="replace")):
                number = re.match(r"X:\s*(\S+)", block)
                for tune in read_tunes(block) if number and number[1] in numbers else ():
                    if not isinstance(tune, AbcError) and (source := label(collection, tune)).name in names:
                        yield encode(normalise(source))


def test_bits_per_note_on_held_out_tunes() -> None:
    assert all(f'"{name}"' in RELEASED.read_text("utf-8") for name in SAMPLE)
    tunes = list(held_out(set(SAMPLE)))
    assert len(tunes) == len(SAMPLE)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        str(DATA / graph_name(half=False, device=False)), options, providers=["CPUExecutionProvider"]
    )
    decoder = HostDecoder(read_weights(), session)
    longest = max(len(tune.ids) for tune in tunes)
    decoder.start(len(tunes), longest)
    bits, notes = 0.0, 0
    for at in range(longest - 1):
        ids = np.array([tune.ids[at] if at < len(tune.ids) else tokens.PAD for tune in tunes], np.int64)
        sides = np.array([tune.sides[min(at, len(tune.ids) - 1)] for tune in tunes], np.int64)
        logits = decoder.step(ids, sides).astype(np.float64)
        sums = np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)) + logits.max(axis=1)
        for number, tune in enumerate(tunes):
            if at + 1 < len(tune.ids) and tune.kinds[at] > 1:
                following = int(tune.ids[at + 1])
                bits += float(sums[number] - logits[number, following]) / math.log(2)
                notes += tokens.PITCH <= following < tokens.TIE
    assert bits / notes == pytest.approx(2.2376, abs=0.005)
