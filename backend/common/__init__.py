"""Types, errors, interfaces, file formats and system facts. Standard library only, except `config`."""
