"""Names of a package that are imported from its modules when they are first used."""

from collections.abc import Callable
from importlib import import_module


def on_first_use(package: str, /, **modules: str) -> Callable[[str], object]:
    """Return a `__getattr__` for a package, which imports a module when one of the module's names is first used.
    `package`: the package's name. `modules`: for each module its names, separated by spaces."""
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f".{homes[name]}", package), name)

    return get
