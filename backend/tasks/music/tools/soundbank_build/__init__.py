"""Builder of the sound bank in `backend/tasks/music/data/sounds` from FluidR3_GM.sf2.

A tool that needs its own environment (requirements.txt in this folder). It is not part of the service.
"""
