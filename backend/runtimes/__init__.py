"""Runtimes as data and as folders: what each needs (`data/NAME.yaml`), where it lies, and how it is made."""
