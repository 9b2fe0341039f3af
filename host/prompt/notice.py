"""Texts that are shown on the running node."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from comfy_execution.utils import get_executing_context

TEXT_EVENT = "lingbot_world.text"

_quiet: ContextVar[bool] = ContextVar("lingbot_world_quiet", default=False)
_shown: dict[str, tuple[str, tuple[str, ...]]] = {}
"""The id of the prompt in which each node ran last, and the texts that the node shows."""


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings and notes in this context, for nodes that are only evaluated for their results."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def show_warning(text: str) -> None:
    """Show a warning on the running node, below the earlier ones of this run, and log it.

    The first call of a run removes the warnings of the node's last run; its text may be empty."""
    if _quiet.get():
        return
    _show(text, logging.WARNING)


def show_note(text: str) -> None:
    """Show a note about a run on the running node, below its warnings, and log it."""
    if not _quiet.get():
        _show(text, logging.INFO)


def running_node() -> str | None:
    """Return the id of the node that ComfyUI is running; None outside of a prompt."""
    context = get_executing_context()
    return None if context is None else context.node_id


def _show(text: str, level: int) -> None:
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
    """Show a text on the running node in place of the previous one; an empty text removes it.

    web/js/comfy/node_text.js displays it, because the front-end's own text of a running node disappears when the run
    ends."""
    context = get_executing_context()
    if context is not None:
        from server import PromptServer

        said = {"prompt_id": context.prompt_id, "node": context.node_id, "text": text}
        PromptServer.instance.send_sync(TEXT_EVENT, said, PromptServer.instance.client_id)
