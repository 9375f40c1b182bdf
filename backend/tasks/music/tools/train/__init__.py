"""Trains the folk-tune model from the tunes in music21's wheel: `python -m backend.tasks.music.tools.train --help`.

Needs its own environment (requirements.txt beside this file); nothing here runs in the service.
"""
