"""Programs that made the music model and its sounds. The service does not import them."""
