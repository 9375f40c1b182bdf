"""Separation of music into stems, independent of the engine: `job.py` runs a job with any `Separator`.

The server imports only `choices`; the other modules run in workers and need NumPy, soundfile and soxr.
"""
