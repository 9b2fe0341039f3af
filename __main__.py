"""The `lingbot-world` command for `python -m lingbot_world`, or for `python FOLDER` without installation."""

import _signal as signal  # `signal` imports `enum`
import sys


def _import_folder() -> None:
    """Import this file's folder as the package lingbot_world. Remove the folder from sys.path, where it hides other
    modules."""
    import importlib.util
    from pathlib import Path

    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    spec = importlib.util.spec_from_file_location("lingbot_world", here / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["lingbot_world"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["lingbot_world"])


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # `entry` does the same, but its import is slow
    if not __package__:
        _import_folder()
    from lingbot_world.headless.command.entry import main

    sys.exit(main())
