"""Development tools: training of the music model (`train`) and building of the sound bank (`soundbank_build`).

They are not part of the service. No other package imports them, and the service's figures for test coverage and lines
of code exclude them. Each has its own requirements.txt. Their results are the files in `backend/tasks/music/data`.
"""
