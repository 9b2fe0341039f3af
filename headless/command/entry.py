"""The entry point of the installed command `lingbot-world`, which imports no slow modules."""

import _signal as signal  # `signal` imports `enum`, and Ctrl-C prints a traceback until `main` runs


def main() -> int:
    """Run the command and return its exit code. Ctrl-C during the import of `cli` prints no traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli import main as run

    return run()
