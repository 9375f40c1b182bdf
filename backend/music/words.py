"""The words that free text is read by. Names of forms, modes and instruments count by themselves."""

from __future__ import annotations

NUMBERS = {
    "a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "twelve": 12, "fifteen": 15, "sixteen": 16, "twenty": 20, "thirty": 30, "sixty": 60,
}  # fmt: skip
SYNONYMS: dict[str, dict[str, str]] = {
    "form": {"slipjig": "slip jig", "lament": "air", "lullaby": "air", "ballad": "air", "song": "air"},
    "mode": {
        "sad": "minor", "mournful": "minor", "melancholy": "minor", "melancholic": "minor", "dark": "minor",
        "gloomy": "minor", "wistful": "minor", "happy": "major", "cheerful": "major", "merry": "major",
        "bright": "major", "joyful": "major", "sunny": "major",
    },
    "meter": {"waltz": "3/4", "common time": "4/4"},
    "backing": {
        "unaccompanied": "none", "solo": "none", "melody only": "none", "without backing": "none",
        "without accompaniment": "none", "no backing": "none", "no accompaniment": "none",
        "with chords and bass": "full", "with bass and chords": "full", "with backing": "full",
        "with accompaniment": "full", "accompanied": "full", "with chords": "chords", "with bass": "bass",
    },
    "instrument": {
        "fiddle": "violin", "tin whistle": "whistle", "pennywhistle": "whistle", "guitar": "steel-guitar",
        "squeezebox": "accordion", "organ": "church-organ", "steel string guitar": "steel-guitar",
        "nylon string guitar": "nylon-guitar", "classical guitar": "nylon-guitar", "double bass": "bass",
    },
    "pace": {
        "very slow": "slow", "slow": "slow", "slowly": "slow", "gentle": "slow", "calm": "slow", "peaceful": "slow",
        "very fast": "fast", "fast": "fast", "quick": "fast", "lively": "fast", "brisk": "fast", "driving": "fast",
        "energetic": "fast",
    },
}  # fmt: skip
FORM_OF_PACE = {"slow": "air", "fast": "reel"}
FILLERS = set(
    "a an the and or in of at for on to by with me my i want would like please make write play compose create generate "
    "give some something tune tunes melody piece music musical short long little nice that is it as about around "
    "exactly key long folk lasting lasts last bpm played be should which".split()
)
