"""Isolated environments: recipes (`data/NAME.yaml`), lock files, the store of installed versions, the installer."""
