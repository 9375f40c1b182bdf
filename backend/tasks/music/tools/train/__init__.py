"""Training of the tune model on the tunes in music21's wheel: `python -m backend.tasks.music.tools.train --help`.

A tool that needs its own environment (requirements.txt in this folder). It is not part of the service.
"""
