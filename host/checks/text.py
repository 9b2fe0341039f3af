"""Warnings about ComfyUI's text nodes that silently change a prompt, found in the running graph."""

import re
from collections.abc import Iterator
from contextlib import suppress

from ..node_classes import node_classes
from ..prompt.queue import Prompt, UnknownError, is_link, running_prompt
from .graph import type_of, upstream_nodes

OF_TEXT = ("CONDITIONING", "GUIDER", "CLIP")
OURS, LIVE = "LingBotWorld", "LingBotWorldLive"
LAST_LAYER, PLAIN, STYLE = "CLIPSetLastLayer", "CLIPTextEncode", "StyleModelApply"
CLIP_LAYERS, CAMERA = "CLIPAttentionMultiply", "LingBotWorldApplyCamera"
TEXT_ONLY = "ConditioningAverage", "ConditioningConcat"
"""ComfyUI's nodes that take only the text embedding from their input `conditioning_from`. A camera in that conditioning
is lost."""
_EMBEDDING = re.compile(r"embedding:[^\s,()]+")


def text_node_warnings() -> Iterator[str]:
    """Yield warnings about nodes that silently change a prompt, and about crossed positive and negative links. The
    running node and all nodes upstream are examined."""
    with suppress(UnknownError):
        prompt, node = running_prompt()
        for each in (*upstream_nodes(prompt, node, OF_TEXT), node):
            yield from _node_warnings(each, prompt[each])
            yield from _crossed_wire_warnings(prompt, each)
            yield from _left_out_camera_warnings(prompt, each)


def embedding_warnings(place: str, text: str) -> list[str]:
    """Return a warning for each distinct `embedding:name` in a prompt's `text`, whether or not a file for the embedding
    exists. Each warning begins with `place`, such as "Node 7"."""
    return [
        f"{place}: {name} counts only if models/embeddings has it for umt5-xxl; else ComfyUI leaves it out of the "
        "prompt, and only its log reports it."
        for name in dict.fromkeys(_EMBEDDING.findall(text))
    ]


def _node_warnings(node: str, made: dict) -> Iterator[str]:
    kind, inputs = made["class_type"], made["inputs"]
    known = node_classes().get(kind)
    is_core = str(getattr(known, "RELATIVE_PYTHON_MODULE", "")).startswith("comfy_extras")
    if kind == LAST_LAYER and inputs.get("stop_at_clip_layer") != -1:
        yield (
            f"Node {node}, CLIP Set Last Layer, takes the prompt from a layer before the text encoder's last one, "
            "which the model was trained with: take that node out."
        )
    elif kind == CLIP_LAYERS:
        yield f"Node {node}, CLIP Attention Multiply, changes nothing: this text encoder has no layers of a CLIP."
    elif kind == STYLE or (kind.startswith(("CLIPTextEncode", "TextEncode")) and kind != PLAIN and is_core):
        yield (
            f"Node {node}, {kind}, writes prompts for another model, with words or tokens that LingBot-World was "
            "not trained with: use CLIP Text Encode."
        )
    by_clip = not kind.startswith(OURS) or (kind == LIVE and "positive" not in inputs)
    for text in (value for value in inputs.values() if isinstance(value, str) and by_clip):
        yield from embedding_warnings(f"Node {node}", text)


def _left_out_camera_warnings(prompt: Prompt, node: str) -> Iterator[str]:
    inputs = prompt[node]["inputs"]
    links = [inputs.get(f"conditioning_{end}") for end in ("to", "from")]
    if prompt[node]["class_type"] in TEXT_ONLY and all(map(is_link, links)):
        read, unread = ({link[0], *upstream_nodes(prompt, link[0], OF_TEXT)} for link in links)
        for each in sorted(unread - read):
            if prompt[each]["class_type"] == CAMERA:
                yield (
                    f"Node {node}, {prompt[node]['class_type']}, takes only the text of conditioning_from: the camera "
                    f"of node {each} has no effect there."
                )


def _crossed_wire_warnings(prompt: Prompt, node: str) -> Iterator[str]:
    known = node_classes()
    for name, other in (("positive", "negative"), ("negative", "positive")):
        link = prompt[node]["inputs"].get(name)
        if type_of(prompt, link) == "CONDITIONING":
            names = getattr(known[prompt[link[0]]["class_type"]], "RETURN_NAMES", None) or ()
            if names[link[1] : link[1] + 1] in ((other,), [other]):
                yield (
                    f"Node {node}: its {name} input gets the {other} output of node {link[0]}: are the wires crossed?"
                )
