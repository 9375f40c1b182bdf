"""Conversion of a SoundFont recording for the sound bank: filter, trim, resample.

The loop keeps an integral length in samples, so that it stays in tune and in phase. For this the sample rate is
adjusted by a fraction of a percent; `rate` in the bank is the adjusted rate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import signal

from backend.tasks.music.tools.soundbank_build.soundfont import Zone

RATES = (16_000, 22_050, 26_000, 32_000, 44_100)
_USED_OF_NYQUIST = 0.88  # usable band; the rest is the transition band of the player's interpolation
_INAUDIBLE_DB = -66.0  # content above the usable band may be dropped if it is below this relative level
_FILTER_FROM_HZ = 16_000.0  # a higher cutoff frequency is inaudible, so no filter is applied
_ONSET_WINDOW_S = 0.003
_SEAM_S = 0.008
_END_FADE_S = 0.06


@dataclass(frozen=True)
class Onset:
    """The onset of a recording: where its level first is within `near_db` of its peak; faded in over `rise_s`."""

    near_db: float
    rise_s: float


@dataclass(frozen=True)
class ShapedRecording:
    """A recording of the bank, normalized to a peak of 1, with its zone and its original peak `level`."""

    zone: Zone
    level: float


def shape(zone: Zone, longest_s: float, onset: Onset) -> ShapedRecording:
    """Filter, trim and resample a zone. A recording without a loop is faded out after at most `longest_s`."""
    zone = replace(zone, pcm=_apply_filter(zone))
    zone = _trim_silence(zone, onset)
    zone = _trim_end(zone, longest_s)
    rate = _needed_rate(zone)
    if rate < zone.rate:
        zone = _resample(zone, rate)
    if zone.loop:
        zone = replace(zone, pcm=_crossfade_loop(zone.pcm, zone.loop, round(_SEAM_S * zone.rate)))
    level = float(np.abs(zone.pcm).max())
    return ShapedRecording(replace(zone, pcm=zone.pcm / level), level)


def _apply_filter(zone: Zone) -> NDArray[np.float64]:
    """Return the samples after the zone's low-pass filter: two poles, no resonance."""
    pcm = zone.pcm - float(zone.pcm.mean())
    if zone.cutoff_hz >= min(_FILTER_FROM_HZ, zone.rate / 2 * 0.95):
        return pcm
    filtered: NDArray[np.float64] = signal.sosfilt(signal.butter(2, zone.cutoff_hz, fs=zone.rate, output="sos"), pcm)
    return filtered


def _trim_silence(zone: Zone, onset: Onset) -> Zone:
    """Trim the silence before the onset, so that a note sounds immediately."""
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


def _trim_end(zone: Zone, longest_s: float) -> Zone:
    """Drop the samples after the loop; fade out a recording that has none or is too long."""
    longest = round(longest_s * zone.rate)
    if zone.loop and zone.loop[1] <= longest:
        return replace(zone, pcm=zone.pcm[: zone.loop[1]])
    pcm = zone.pcm[:longest].copy()
    fade = round(_END_FADE_S * zone.rate)
    pcm[-fade:] *= 0.5 + 0.5 * np.cos(np.pi * np.arange(1, fade + 1) / fade)
    return replace(zone, pcm=pcm, loop=None)


def _needed_rate(zone: Zone) -> float:
    """Return the lowest sample rate that keeps all audible content, also in the loudest frames."""
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


def _resample(zone: Zone, rate: float) -> Zone:
    """Resample with the FFT, padded with silence so that the end does not wrap around to the start."""
    length = len(zone.pcm)
    loop = zone.loop[1] - zone.loop[0] if zone.loop else 1000
    new_loop = max(round(loop * rate / zone.rate), 1)
    ratio = new_loop / loop
    if zone.loop:
        # Continue the loop after the end, so that the seam is not an edge for the filter.
        continued_loop = np.resize(zone.pcm[zone.loop[0] :], 2048)
        pcm = np.concatenate([zone.pcm, continued_loop * np.linspace(1, 0, 2048) ** 2])
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


def _crossfade_loop(pcm: NDArray[np.float64], loop: tuple[int, int], fade: int) -> NDArray[np.float64]:
    """Crossfade the samples before the loop's end into those before its start, so that the loop has no click."""
    start, end = loop
    fade = min(fade, start, (end - start) // 2)
    mix = 0.5 - 0.5 * np.cos(np.pi * np.arange(1, fade + 1) / (fade + 1))
    out = pcm.copy()
    out[end - fade : end] = (1 - mix) * pcm[end - fade : end] + mix * pcm[start - fade : start]
    return out
