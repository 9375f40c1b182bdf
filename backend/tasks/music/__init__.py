"""The built-in tune generator: a small transformer writes the melody, rules add the accompaniment.

It runs in workers. The server only imports `controls`, `prompt_parser` and their dependencies, which use the standard
library alone. `tools/` contains the training and sound bank programs; the service does not import it.
"""
