"""Songs: the models that generate audio, the options they take, their folders, and a song job."""
