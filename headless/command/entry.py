"""Where the installed `lingbot-world` begins. Importing this imports nothing that takes time."""

import signal


def main() -> int:
    """Run the command and return its exit code. Ctrl-C ends the process in silence until `cli.main` can report it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli import main as run

    return run()
