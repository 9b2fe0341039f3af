"""What nodes tell the user: refusals before a prompt runs, and, from `host.notice`, texts while it does."""

from collections.abc import Callable

from ..errors import LingBotError
from ..host.notice import show_text, show_warning

__all__ = ["refusal", "show_text", "show_warning"]


def refusal(check: Callable[..., object], *arguments) -> bool | str:
    """True, or the message of the LingBotError that `check(*arguments)` raises, or of a file that cannot be read. An
    argument of None comes from another node and is not known yet: nothing is checked.

    ComfyUI repeats the message for each input that `validate_inputs` names: name as few as the check can do with."""
    if None in arguments:
        return True
    try:
        check(*arguments)
    except LingBotError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename}: {error.strerror or error}"
    return True
