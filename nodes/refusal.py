"""What nodes tell the user: refusals before a prompt runs, warnings while it does."""

import logging
from collections.abc import Callable

from comfy_execution.utils import get_executing_context

from ..errors import LingBotError

_warned_nodes: set[str] = set()


def refusal(check: Callable[..., object], *arguments) -> bool | str:
    """True, or the message of the LingBotError that `check(*arguments)` raises, or of a file that cannot be read."""
    try:
        check(*arguments)
    except LingBotError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename}: {error.strerror or error}"
    return True


def show_warning(text: str) -> None:
    """Show a warning on the running node, and log it. An empty one removes the warning of the node's last run."""
    if text:
        logging.warning(text)
    context = get_executing_context()
    if context is None or not (text or context.node_id in _warned_nodes):
        return
    show_text(text)
    (_warned_nodes.add if text else _warned_nodes.discard)(context.node_id)


def show_text(text: str) -> None:
    """Show a text on the running node, in place of what it showed before."""
    context = get_executing_context()
    if context is not None:
        from server import PromptServer

        PromptServer.instance.send_progress_text(text, context.node_id, PromptServer.instance.client_id)
