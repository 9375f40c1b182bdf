"""Separates music into stems. The server imports `choices` alone; children the rest, whose libraries are NumPy,
soundfile and soxr. It knows nothing of engines: `making.py` runs a job with any `Separator`.
"""
