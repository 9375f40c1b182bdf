"""The verbs of the command line: one file each, found by listing. The first line of a file's docstring is its help.

A verb has `add_arguments(parser)` and `run(args) -> int`, which returns the exit code. Only the chosen verb is
imported. A verb imports the manager, the server and httpx inside its functions, so that its --help is fast.
"""
