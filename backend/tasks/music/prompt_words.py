"""The vocabulary of the prompt parser. The names of forms, modes and instruments are added by the parser."""

from __future__ import annotations

SYNONYMS: dict[str, dict[str, str]] = {
    "form": {"slipjig": "slip jig", "lament": "air", "lullaby": "air", "ballad": "air", "song": "air"},
    "mode": {
        "ionian": "major", "aeolian": "minor",
        "sad": "minor", "mournful": "minor", "melancholy": "minor", "melancholic": "minor", "dark": "minor",
        "gloomy": "minor", "wistful": "minor", "happy": "major", "cheerful": "major", "merry": "major",
        "bright": "major", "joyful": "major", "sunny": "major",
    },
    "meter": {
        "waltz": "3/4", "common time": "4/4", "two four": "2/4", "three four": "3/4", "four four": "4/4",
        "six eight": "6/8", "nine eight": "9/8",
    },
    "backing": {
        "unaccompanied": "none", "solo": "none", "melody only": "none", "without backing": "none",
        "without accompaniment": "none", "no backing": "none", "no accompaniment": "none",
        "with chords and bass": "full", "with bass and chords": "full", "with backing": "full",
        "with accompaniment": "full", "accompanied": "full", "with chords": "chords", "with bass": "bass",
        "with a bass": "bass", "just chords": "chords", "only chords": "chords", "chords only": "chords",
        "just bass": "bass", "only bass": "bass", "bass only": "bass", "just the melody": "none",
        "only the melody": "none", "without bass": "chords", "no bass": "chords", "without chords": "bass",
        "no chords": "bass", "a cappella": "none", "without any backing": "none", "without any accompaniment": "none",
        **{f"{no} {one} {nor} {other}": "none"
           for no, nors in (("no", ("or", "and", "and no", "nor")), ("without", ("or", "and", "nor")))
           for nor in nors for one, other in (("chords", "bass"), ("bass", "chords"))},
    },
    "instrument": {
        "fiddle": "violin", "tin whistle": "whistle", "pennywhistle": "whistle", "guitar": "steel-guitar",
        "squeezebox": "accordion", "organ": "church-organ", "steel string guitar": "steel-guitar",
        "nylon string guitar": "nylon-guitar", "classical guitar": "nylon-guitar", "double bass": "bass",
    },
    "speed": {
        "very slow": "slow", "slow": "slow", "slowly": "slow", "slower": "slow", "gentle": "slow", "calm": "slow",
        "peaceful": "slow", "adagio": "slow", "largo": "slow", "lento": "slow", "andante": "slow",
        "very fast": "fast", "fast": "fast", "faster": "fast", "quick": "fast", "quickly": "fast", "lively": "fast",
        "brisk": "fast", "driving": "fast", "energetic": "fast", "allegro": "fast", "presto": "fast", "vivace": "fast",
    },
}  # fmt: skip
FORM_BY_SPEED = {"slow": "air", "fast": "reel"}
# One of these negates the clause that follows, which no option can express.
NEGATIONS = (
    "not no never without nothing neither nor avoid except excluding don't dont doesn't isn't aren't shouldn't mustn't "
    "cannot can't won't"
).split() + ["anything but", "rather than", "instead of", "other than", "apart from", "less"]
# Words that end a negated clause, except at its start.
CLAUSE_WORDS = "but just only in for on at with by as please".split()
FILLERS = set(
    "a an the and or in of at for on to by with me my i want would like please make write play compose create generate "
    "give some something tune tunes melody piece music musical little nice that is it as about around exactly key "
    "folk lasting lasts last bpm played be should which time length duration tempo variation variations seed but just "
    "which's let there so".split()
)
