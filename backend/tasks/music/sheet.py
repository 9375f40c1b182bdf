"""Export of a score as an SVG sheet. This module writes MEI (Music Encoding Initiative) text, and verovio engraves it.

Verovio (LGPL) has no wheel for Windows on ARM64; `is_available` returns False there.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from backend.tasks.music.choices import INSTRUMENTS
from backend.tasks.music.notation import WHOLE, Bar, Element, Group, line_ends, notate_bars, section_ends
from backend.tasks.music.score import TICKS_PER_WHOLE, Chord, Part, Score
from backend.tasks.music.spelling import Key, key_of

_ACCIDENTALS = {-2: "ff", -1: "f", 0: "n", 1: "s", 2: "x"}
_QUALITY_NAMES = {"maj": "", "min": "m", "dim": "dim"}
_OCTAVE_CLEF = ("bass", "steel-guitar", "nylon-guitar")  # written an octave higher than it sounds, as is usual
# Glyphs of the Standard Music Font Layout (SMuFL), for verovio's font.
_QUARTER_SIGN, _DOT_SIGN = "&#xE1D5;", "&#xE1E7;"
_BEAMED = WHOLE // 8  # eighths and shorter
_OPTIONS = {
    "inputFrom": "mei",
    "pageWidth": 2100,
    "pageHeight": 60000,
    "adjustPageHeight": True,
    "pageMarginLeft": 150,
    "scale": 50,
    "footer": "none",
    "header": "auto",
    "breaks": "encoded",
    "svgViewBox": True,
    "svgFormatRaw": True,
    "xmlIdSeed": 1,
}


def is_available() -> bool:
    """Whether verovio is installed."""
    return importlib.util.find_spec("verovio") is not None


def to_svg(score: Score) -> str:
    """Return the score as SVG on one page of the necessary height. Raises ValueError."""
    import verovio

    verovio.enableLog(verovio.LOG_ERROR)
    toolkit = verovio.toolkit(False)
    # The default path is only set in the thread that imported verovio.
    toolkit.setResourcePath(str(Path(verovio.__file__).with_name("data")))
    toolkit.setOptions(_OPTIONS)
    if not toolkit.loadData(to_mei(score)):
        raise ValueError("verovio cannot parse the score")
    return str(toolkit.renderToSVG(1))


def to_mei(score: Score) -> str:
    """Return the score as MEI: one staff per part, chord symbols above the melody, the tempo at the first full bar."""
    melody = score.melody
    key = key_of(melody.tonic, melody.mode)
    notated = [notate_bars(melody, part.notes) for part in score.parts]
    sections, breaks = section_ends(melody), line_ends(melody)
    voices = [_StaffWriter(key, melody.bar_ticks) for _ in score.parts]
    full_bars = set(melody.bar_starts)
    # At a pickup, the tempo mark would collide with the notes and chord symbols of the next bar.
    tempo_bar = min(1, len(notated[0]) - 1) if melody.pickup_ticks else 0
    measures = []
    count = 0
    for number, column in enumerate(zip(*notated, strict=True)):
        first = column[0]
        right = "end" if number == len(notated[0]) - 1 else "dbl" if first.end in sections else "single"
        staves = "".join(
            f'<staff n="{staff}"><layer n="1">{voice.bar(bar)}</layer></staff>'
            for staff, (voice, bar) in enumerate(zip(voices, column, strict=True), 1)
        )
        signs = _tempo(score) if number == tempo_bar else ""
        signs += "".join(_harmony(score, key, first, chord) for chord in score.chords)
        metcon = "" if first.end - first.start == melody.bar_ticks else ' metcon="false"'
        count += first.start in full_bars
        line = "<sb/>" if first.end in breaks and right != "end" else ""
        measures.append(f'<measure n="{count}"{metcon} right="{right}">{staves}{signs}</measure>{line}')
    definition = "".join(_staff(number, part) for number, part in enumerate(score.parts, 1))
    bracket = ' symbol="bracket" bar.thru="true"' if len(score.parts) > 1 else ""
    top, bottom = melody.meter
    return (
        '<mei xmlns="http://www.music-encoding.org/ns/mei" meiversion="5.0"><meiHead><fileDesc><titleStmt>'
        f"<title>{escape(score.title)}</title></titleStmt><pubStmt/></fileDesc></meiHead>"
        f'<music><body><mdiv><score><scoreDef keysig="{_signature(key)}" meter.count="{top}" meter.unit="{bottom}"'
        f' midi.bpm="{_quarters(score):g}">'
        f"<staffGrp{bracket}>{definition}</staffGrp></scoreDef>"
        f"<section>{''.join(measures)}</section></score></mdiv></body></music></mei>"
    )


def _staff(number: int, part: Part) -> str:
    clef = 'clef.shape="F" clef.line="4"' if part.instrument == "bass" else 'clef.shape="G" clef.line="2"'
    if part.instrument in _OCTAVE_CLEF:
        clef += ' clef.dis="8" clef.dis.place="below"'
    label = escape(INSTRUMENTS[part.instrument].label)
    return f'<staffDef n="{number}" lines="5" {clef}><label>{label}</label></staffDef>'


def _signature(key: Key) -> str:
    return f"{abs(key.fifths)}{'s' if key.fifths > 0 else 'f'}" if key.fifths else "0"


def _tempo(score: Score) -> str:
    unit = "4" if score.beat_ticks == 36 else str(TICKS_PER_WHOLE // score.beat_ticks)
    dots = ' mm.dots="1"' if score.beat_ticks == 36 else ""
    sign = _QUARTER_SIGN + (_DOT_SIGN if dots else "")
    return (
        f'<tempo staff="1" place="above" tstamp="1" vo="0.7vu" midi.bpm="{_quarters(score):g}" mm="{score.tempo_bpm:g}"'
        f' mm.unit="{unit}"{dots}><rend glyph.auth="smufl">{sign}</rend> = {round(score.tempo_bpm, 1):g}</tempo>'
    )


def _quarters(score: Score) -> float:
    """Return the tempo in quarters per minute."""
    return score.tempo_bpm * score.beat_ticks * 4 / TICKS_PER_WHOLE


def _harmony(score: Score, key: Key, bar: Bar, chord: Chord) -> str:
    if not bar.start <= chord.start < bar.end:
        return ""
    timestamp = 1 + (chord.start - bar.start) * score.melody.meter[1] / TICKS_PER_WHOLE
    name = key.name_of(chord.root).replace("#", "♯").replace("b", "♭") + _QUALITY_NAMES[chord.quality]
    return f'<harm staff="1" place="above" tstamp="{timestamp:g}">{escape(name)}</harm>'


class _StaffWriter:
    """Writes one staff bar by bar and tracks the accidentals in force and the tied pitches."""

    def __init__(self, key: Key, bar_ticks: int) -> None:
        self._key = key
        self._bar_ticks = bar_ticks
        self._accidentals: dict[tuple[str, int], int] = {}
        self._tied_pitches: tuple[int, ...] = ()

    def bar(self, bar: Bar) -> str:
        self._accidentals.clear()
        silent = not any(element.pitches for group in bar.groups for element in group.elements)
        if silent and bar.end - bar.start == self._bar_ticks:
            return "<mRest/>"
        return "".join(self._group(group) for group in bar.groups)

    def _group(self, group: Group) -> str:
        beamed = [element.length < _BEAMED * 2 and bool(element.pitches) for element in group.elements]
        text, run = "", ""
        count = 0
        for element, short in zip(group.elements, beamed, strict=True):
            if short:
                run += self._element(element)
                count += 1
                continue
            text += self._beam(run, count) + self._element(element)
            run, count = "", 0
        text += self._beam(run, count)
        return f'<tuplet num="3" numbase="2">{text}</tuplet>' if group.is_triplet else text

    def _beam(self, run: str, count: int) -> str:
        return f"<beam>{run}</beam>" if count > 1 else run

    def _element(self, element: Element) -> str:
        dotted = element.is_dotted
        value = element.length * 2 // 3 if dotted else element.length
        length = f"dur={quoteattr('breve' if value > WHOLE else str(WHOLE // value))}" + (' dots="1"' if dotted else "")
        if not element.pitches:
            return f"<rest {length}/>"
        single_length = f" {length}" if len(element.pitches) == 1 else ""
        notes = "".join(f"<note{single_length}{self._note(element, pitch)}/>" for pitch in element.pitches)
        self._tied_pitches = element.pitches if element.is_tied else ()
        return notes if single_length else f"<chord {length}>{notes}</chord>"

    def _note(self, element: Element, pitch: int) -> str:
        note = self._key.spell(pitch)
        position = (note.letter, note.octave)
        signature = self._key.signature(note.letter)
        is_continued = pitch in self._tied_pitches
        text = f' pname="{note.letter.lower()}" oct="{note.octave}"'
        if is_continued or self._accidentals.get(position, signature) == note.alteration:
            if note.alteration or signature:
                text += f' accid.ges="{_ACCIDENTALS[note.alteration]}"'
        else:
            text += f' accid="{_ACCIDENTALS[note.alteration]}"'
            self._accidentals[position] = note.alteration
        if is_continued or element.is_tied:
            text += f' tie="{"m" if is_continued and element.is_tied else "t" if is_continued else "i"}"'
        return text
