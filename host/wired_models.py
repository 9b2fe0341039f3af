"""What kind of model a link brings, before anything of a prompt runs: the node that has opened it tells."""

from importlib import import_module
from typing import Any

from ..errors import InputError
from .base_model import ONLY_ROLLOUT
from .prompt_values import Prompt, UnknownError, is_link
from .queued_prompt import node_in_question

LOAD_EXPERTS, LOAD_CAUSAL = "LingBotWorldLoadExperts", "LingBotWorldLoadCausal"
MODEL, ANYTHING = "MODEL", "*"


def check_experts(*names: str) -> None:
    """Raises InputError where the node that ComfyUI is validating gets a causal model on one of these inputs."""
    try:
        prompt, node = node_in_question()
    except UnknownError:
        return
    for name in names:
        if loader_of(prompt, prompt[node]["inputs"].get(name)) == LOAD_CAUSAL:
            raise InputError(f"{name}: {ONLY_ROLLOUT}")


def loader_of(prompt: Prompt, link: Any) -> str | None:
    """The class of the node that has opened a MODEL: LOAD_EXPERTS, LOAD_CAUSAL, or None where that is not known.

    A node that takes one MODEL and gives out one, such as a LoRA loader, passes it on."""
    passed = set()
    while type_of(prompt, link) == MODEL and link[0] not in passed:
        passed.add(link[0])
        node = prompt[link[0]]
        if node["class_type"] in (LOAD_EXPERTS, LOAD_CAUSAL):
            return node["class_type"]
        links = [value for value in node["inputs"].values() if type_of(prompt, value) in (MODEL, ANYTHING)]
        link = links[0] if len(links) == 1 else None
    return None


def type_of(prompt: Prompt, link: Any) -> str | None:
    """The type of what a link brings, as its node declares it; None for a value and for a link that leads nowhere."""
    if not is_link(link):
        return None
    known = import_module("nodes").NODE_CLASS_MAPPINGS  # ComfyUI's `nodes`
    try:
        return known[prompt[link[0]]["class_type"]].RETURN_TYPES[link[1]]
    except (KeyError, IndexError, TypeError):
        return None
