"""How nodes refuse a prompt before it runs."""

from collections.abc import Callable

from ..errors import LingBotError


class NamesToCheck(list[str]):
    """The names that a combo offers. The node's own check says which others are taken, and what is wrong with the rest:
    ComfyUI, which looks whether a value is `in` the list, does not add a message of its own."""

    def __contains__(self, name: object) -> bool:
        return True


def refusal(check: Callable[..., object], *arguments) -> bool | str:
    """True, or the message of the LingBotError that `check(*arguments)` raises, or of a file that cannot be read. An
    argument of None comes from another node and is not known yet: nothing is checked.

    ComfyUI repeats the message for each input that `validate_inputs` names. So it names one, and takes the others from
    `host.queued_prompt.known_inputs`."""
    if None in arguments:
        return True
    try:
        check(*arguments)
    except LingBotError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename}: {error.strerror or error}"
    return True
