"""Progress reports and audio files, for all tasks that produce audio."""
