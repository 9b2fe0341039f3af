"""Warnings and notes that appear on the node that ComfyUI is running."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from comfy_execution.utils import get_executing_context

TEXT_EVENT = "lingbot_world.text"
_quiet: ContextVar[bool] = ContextVar("lingbot_world_quiet", default=False)
_texts: dict[str, tuple[str, tuple[str, ...]]] = {}
"""For each node id, the id of the latest prompt that ran the node, and the texts on the node."""


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings and notes while this context is open. It serves to evaluate nodes before ComfyUI runs them."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def show_warning(*texts: str) -> None:
    """Log warnings and show them on the running node, where they replace the texts of earlier runs. "" only removes
    those texts."""
    for text in texts:
        _show(text, logging.WARNING)


def show_note(*texts: str) -> None:
    """Log notes and add them to the running node's texts, in the same way as `show_warning`."""
    for text in texts:
        _show(text, logging.INFO)


def running_node() -> str | None:
    """Return the id of the node that ComfyUI is running, or None if no prompt runs in this thread."""
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
    prompt, before = _texts.get(context.node_id, ("", ()))
    texts = before if prompt == context.prompt_id else ()
    if text and text not in texts:
        logging.log(level, text)
        texts = (*texts, text)
    _texts[context.node_id] = context.prompt_id, texts
    if texts != before:
        show_text("\n".join(texts))


def show_text(text: str) -> None:
    """Replace the text on the running node. Without a running node, do nothing."""
    context = get_executing_context()
    if context is not None:
        from server import PromptServer

        message = {"prompt_id": context.prompt_id, "node": context.node_id, "text": text}
        PromptServer.instance.send_sync(TEXT_EVENT, message, PromptServer.instance.client_id)
