"""The runtimes of this machine: list, install, verify, update, roll back, remove.

A new version is used only after its proofs passed; until then the previous one serves. Workers of an older version
finish their jobs.
"""
