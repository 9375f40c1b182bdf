"""Makes `touchstone` another name of the package `backend`, each module of which exists once.

`import touchstone`, `from touchstone.manager import ModelManager` and `python -m touchstone` work.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_ALIAS, _PACKAGE = "touchstone", "backend"


class _Loader(Loader):
    """Loads `touchstone.X` by returning the module `backend.X`."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(_PACKAGE + spec.name.removeprefix(_ALIAS))
        self._spec = module.__spec__  # the import system replaces it next
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Finder(MetaPathFinder):
    """Finds the modules below `touchstone`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, _Loader()) if fullname.startswith(f"{_ALIAS}.") else None


if __name__ == "__main__":
    from backend.cli.main import main

    sys.exit(main(sys.argv[1:]))
else:
    sys.meta_path.insert(0, _Finder())
    sys.modules[_ALIAS] = importlib.import_module(_PACKAGE)
