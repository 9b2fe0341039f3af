"""What a node's `validate_inputs` answers."""

from collections.abc import Callable

from ..errors import LingBotError


def refusal(check: Callable[..., object], *arguments) -> bool | str:
    """True, or the message of the LingBotError that `check(*arguments)` raises."""
    try:
        check(*arguments)
    except LingBotError as error:
        return str(error)
    return True
