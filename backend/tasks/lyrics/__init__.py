"""Lyrics: generation section by section with a text model, and the syllables and rhymes of the lines.

`generation.py` runs in the worker that holds the model; the other modules only process text. Standard library only.
"""
