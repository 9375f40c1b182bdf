"""Lyrics: a song asked of a text model section by section, and what its lines sound like.

`writing.py` runs in the child that holds the model; the rest reads words alone. Standard library only.
"""
