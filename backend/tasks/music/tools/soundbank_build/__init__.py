"""Builds the sound bank from FluidR3_GM.sf2. Not needed to run: its result is in `backend/tasks/music/data/sounds`."""
