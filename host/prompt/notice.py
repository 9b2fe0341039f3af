"""Warnings and notes on the node that ComfyUI is running."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from comfy_execution.utils import get_executing_context

TEXT_EVENT = "lingbot_world.text"
_quiet: ContextVar[bool] = ContextVar("lingbot_world_quiet", default=False)
_shown: dict[str, tuple[str, tuple[str, ...]]] = {}
"""By node id: the id of the prompt in which the node ran last, and the texts that it shows."""


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings and notes while this context is open, for nodes that are evaluated during validation."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def show_warning(text: str) -> None:
    """Add a warning to the texts on the running node, and log it. The first call in a run removes the texts of the
    node's last run; an empty text adds nothing."""
    _show(text, logging.WARNING)


def show_note(text: str) -> None:
    """Add a note to the texts on the running node, and log it."""
    _show(text, logging.INFO)


def running_node() -> str | None:
    """Return the id of the node that ComfyUI is running; None outside of a prompt."""
    context = get_executing_context()
    return None if context is None else context.node_id


def _show(text: str, level: int) -> None:
    if _quiet.get():
        return
    context = get_executing_context()
    if context is None:
        if text:
            logging.log(level, text)
        return
    prompt, before = _shown.get(context.node_id, ("", ()))
    texts = before if prompt == context.prompt_id else ()
    if text and text not in texts:
        logging.log(level, text)
        texts = (*texts, text)
    _shown[context.node_id] = context.prompt_id, texts
    if texts != before:
        show_text("\n".join(texts))


def show_text(text: str) -> None:
    """Replace the text on the running node; an empty text removes it. web/js/comfy/node_text.js displays the text,
    because the front-end's own text of a node disappears when the run ends."""
    context = get_executing_context()
    if context is not None:
        from server import PromptServer

        message = {"prompt_id": context.prompt_id, "node": context.node_id, "text": text}
        PromptServer.instance.send_sync(TEXT_EVENT, message, PromptServer.instance.client_id)
