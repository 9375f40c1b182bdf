"""The verbs of the command line: one file each, found by listing. The first line of a file's docstring is its help.

A verb has `add_arguments(parser)` and `run(args) -> int`. Only the verb that was asked for is imported.
"""
