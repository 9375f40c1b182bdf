"""From a recording of the SoundFont to one of the sound bank: filtered, cut at both ends, at the rate it needs.

A loop is kept a whole number of samples long, so that playing it over and over stays in tune and in phase: the rate is
bent by the fraction of a percent that this takes, and the bank's `rate` tells the bent one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import signal

from backend.tasks.music.tools.soundbank_build.soundfont import Zone

RATES = (16_000, 22_050, 26_000, 32_000, 44_100)
_USED_OF_NYQUIST = 0.88  # the rest is for the slope of the player's interpolation
_INAUDIBLE_DB = -66.0  # what lies above the used band may be lost when it is this much weaker than all
_FILTER_FROM_HZ = 16_000.0  # a cutoff beyond this changes nothing that is heard
_ONSET_WINDOW_S = 0.003
_SEAM_S = 0.008
_END_FADE_S = 0.06


@dataclass(frozen=True)
class Onset:
    """A recording begins where its level first comes within `near_db` of its loudest, and rises there in `rise_s`."""

    near_db: float
    rise_s: float


@dataclass(frozen=True)
class Shaped:
    """A recording of the bank, peak at 1, with the facts of its zone and the `level` that it had."""

    zone: Zone
    level: float


def shape(zone: Zone, longest_s: float, onset: Onset) -> Shaped:
    """Filters, cuts and resamples a zone; what has no loop ends, faded, after `longest_s` at the latest."""
    zone = replace(zone, pcm=_filtered(zone))
    zone = _without_silence(zone, onset)
    zone = _cut(zone, longest_s)
    rate = _needed_rate(zone)
    if rate < zone.rate:
        zone = _resampled(zone, rate)
    if zone.loop:
        zone = replace(zone, pcm=_seamless(zone.pcm, zone.loop, round(_SEAM_S * zone.rate)))
    level = float(np.abs(zone.pcm).max())
    return Shaped(replace(zone, pcm=zone.pcm / level), level)


def _filtered(zone: Zone) -> NDArray[np.float64]:
    """The zone's low-pass, two poles without resonance, as its envelope would leave it."""
    pcm = zone.pcm - float(zone.pcm.mean())
    if zone.cutoff_hz >= min(_FILTER_FROM_HZ, zone.rate / 2 * 0.95):
        return pcm
    filtered: NDArray[np.float64] = signal.sosfilt(signal.butter(2, zone.cutoff_hz, fs=zone.rate, output="sos"), pcm)
    return filtered


def _without_silence(zone: Zone, onset: Onset) -> Zone:
    """Begins just before the sound does, so that a note is heard when it starts."""
    window = max(round(_ONSET_WINDOW_S * zone.rate), 1)
    rise = round(onset.rise_s * zone.rate)
    power = np.convolve(zone.pcm**2, np.ones(window) / window, mode="full")[: len(zone.pcm)]
    loud = power > power.max() * 10 ** (-onset.near_db / 10)
    start = max(int(np.argmax(loud)) - window - rise // 2, 0)
    if zone.loop:
        start = min(start, max(zone.loop[0] - round(_SEAM_S * zone.rate) - 1, 0))
    pcm = zone.pcm[start:].copy()
    pcm[:rise] *= 0.5 - 0.5 * np.cos(np.pi * np.arange(rise) / rise)
    return replace(zone, pcm=pcm, loop=(zone.loop[0] - start, zone.loop[1] - start) if zone.loop else None)


def _cut(zone: Zone, longest_s: float) -> Zone:
    """Drops what lies behind the loop; fades out what has none, and what is longer than anybody holds a note."""
    longest = round(longest_s * zone.rate)
    if zone.loop and zone.loop[1] <= longest:
        return replace(zone, pcm=zone.pcm[: zone.loop[1]])
    pcm = zone.pcm[:longest].copy()
    fade = round(_END_FADE_S * zone.rate)
    pcm[-fade:] *= 0.5 + 0.5 * np.cos(np.pi * np.arange(1, fade + 1) / fade)
    return replace(zone, pcm=pcm, loop=None)


def _needed_rate(zone: Zone) -> float:
    """The lowest rate that keeps all of the recording that can be heard, in its loudest tenths of a second too."""
    size = 4096
    _, _, spectrum = signal.stft(zone.pcm, fs=zone.rate, nperseg=min(size, len(zone.pcm)), boundary=None)
    power = np.abs(spectrum) ** 2
    frequencies = np.linspace(0, zone.rate / 2, power.shape[0])
    loudest = power.sum(axis=0).max()
    for rate in RATES:
        above = power[frequencies > rate / 2 * _USED_OF_NYQUIST].sum(axis=0).max(initial=0.0)
        if above <= loudest * 10 ** (_INAUDIBLE_DB / 10):
            return min(float(rate), zone.rate)
    return zone.rate


def _resampled(zone: Zone, rate: float) -> Zone:
    """Through the Fourier transform, with silence behind so that the end does not run into the beginning."""
    length = len(zone.pcm)
    loop = zone.loop[1] - zone.loop[0] if zone.loop else 1000
    new_loop = max(round(loop * rate / zone.rate), 1)
    ratio = new_loop / loop
    if zone.loop:
        # The sound goes on behind the end as the loop does, so the seam is not the edge of anything.
        going_on = np.resize(zone.pcm[zone.loop[0] :], 2048)
        pcm = np.concatenate([zone.pcm, going_on * np.linspace(1, 0, 2048) ** 2])
    else:
        pcm = zone.pcm
    blocks = -(-(len(pcm) + 2048) // loop)
    padded = np.zeros(blocks * loop)
    padded[: len(pcm)] = pcm
    out: NDArray[np.float64] = signal.resample(padded, blocks * new_loop)
    if zone.loop:
        start = round(zone.loop[0] * ratio)
        end = start + new_loop
        return replace(zone, pcm=out[:end], rate=zone.rate * ratio, loop=(start, end))
    return replace(zone, pcm=out[: round(length * ratio)], rate=zone.rate * ratio)


def _seamless(pcm: NDArray[np.float64], loop: tuple[int, int], fade: int) -> NDArray[np.float64]:
    """Lets the last samples before the loop's end turn into those before its start, so that the jump back is none."""
    start, end = loop
    fade = min(fade, start, (end - start) // 2)
    mix = 0.5 - 0.5 * np.cos(np.pi * np.arange(1, fade + 1) / (fade + 1))
    out = pcm.copy()
    out[end - fade : end] = (1 - mix) * pcm[end - fade : end] + mix * pcm[start - fade : start]
    return out
