"""What text generation needs whichever engine runs it: chat templates and stop sequences."""
