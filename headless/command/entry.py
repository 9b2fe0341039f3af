"""The entry point of the installed `lingbot-world`. Importing this module is fast."""

import signal


def main() -> int:
    """Run the command and return its exit code. Until `cli.main` can report it, Ctrl-C ends the process silently."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli import main as run

    return run()
