"""What a node's `validate_inputs` answers."""

from collections.abc import Callable

from ..errors import LingBotError


def refusal(check: Callable[..., object], *arguments) -> bool | str:
    """True where `check(*arguments)` has nothing against it, else its LingBotError in words."""
    try:
        check(*arguments)
    except LingBotError as error:
        return str(error)
    return True
