"""What a prompt is refused for: before anything runs, or as a node runs."""

import pytest
from comfy_server import ComfyServer, FailedPromptError, RejectedPromptError


def refuses(server: ComfyServer, prompt: dict, node: str, words: str | None = None) -> RejectedPromptError:
    """Queues a prompt, which is refused for this one node before anything runs; what is said."""
    with pytest.raises(RejectedPromptError, match=words) as told:
        server.queue(prompt)
    assert list(told.value.node_errors) == [node]
    return told.value


def only_problem(server: ComfyServer, prompt: dict, node: str) -> dict:
    """The one error of the one node for which a prompt is refused."""
    (problem,) = refuses(server, prompt, node).node_errors[node]["errors"]
    return problem


def fails(server: ComfyServer, prompt: dict, kind: str, words: str) -> None:
    """Queues a prompt in which a node of this kind raises an error with these words."""
    with pytest.raises(FailedPromptError, match=words) as told:
        server.queue(prompt)
    assert told.value.node_type == kind
