"""Checks of the graph (a prompt in ComfyUI's format), mostly before any node runs."""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

from ...camera.poses import frame_count
from ...errors import InputError
from ...options import CHUNK, CHUNKS, Window
from ..model.base_model import ONLY_ROLLOUT
from ..node_classes import node_classes
from ..prompt.queue import Prompt, PromptValues, UnknownError, is_link, running_prompt, validating_prompt

TILED = "VAEDecodeTiled"
LOAD_EXPERTS, LOAD_CAUSAL = "LingBotWorldLoadExperts", "LingBotWorldLoadCausal"
MODEL, ANYTHING = "MODEL", "*"
OTHER_SCHEDULERS = "LTXVScheduler", "SDTurboScheduler", "Flux2Scheduler", "Ideogram4Scheduler"
"""ComfyUI's scheduler nodes for other models. A warning recognizes them by class: their sigmas look valid."""
OTHER_MODELS = "FLUX", "Chroma"
"""Values of the input `model_type` of ComfyUI's OptimalStepsScheduler that select other models than Wan."""


def check_rollout() -> None:
    """Check the Rollout node that ComfyUI is validating. Raise InputError or CameraError if its inputs do not fit."""
    prompt, node = validating_prompt()
    inputs = prompt[node]["inputs"]
    if loader_of(prompt, inputs.get("model")) == LOAD_EXPERTS:
        raise InputError(
            "model: this is an expert of the base model, which makes a video as a whole; a rollout takes "
            "LingBot-World Fast or 2.0: connect Load LingBot-World Causal Model"
        )
    check_start(*(inputs.get(name) is not None for name in ("start_image", "start_latent", "state")))
    window, sink = inputs.get("window"), inputs.get("sink")
    chunk = inputs.get("chunk")
    chunk = int(chunk) if chunk in map(str, CHUNKS) else CHUNK  # the smallest chunk of any model
    if _is_set(window) and _is_set(sink):
        Window(window, sink).check(chunk)
    frames = _linked_frames(prompt, inputs)
    if frames is not None:
        frame_count(frames, chunk=chunk)


def check_start(image: bool, latent: bool, state: bool) -> None:
    """Raise InputError unless a Rollout has a start: an image, a state, both, or a latent alone. Each argument tells
    whether the input is connected."""
    if latent and (image or state):
        other = "start_image" if image else "state"
        raise InputError(f"start_latent and {other} are both connected, and a video begins with one: disconnect one")
    if not (image or latent or state):
        raise InputError(
            "start_image is missing: connect the video's first frame, a latent whose last frame it is, or a state to "
            "continue from"
        )


def _is_set(latent_frames: Any) -> bool:
    return isinstance(latent_frames, int) and latent_frames >= 0


def _linked_frames(prompt: Prompt, inputs: Mapping[str, Any]) -> int | None:
    """Return the smaller frame count of `camera` and `frames`, or that of the only linked one. Return None if neither
    is linked, or one is still unknown."""
    values, lengths = PromptValues(prompt), []
    try:
        if "camera" in inputs:
            lengths.append(len(values.evaluate(inputs["camera"])))
        if is_link(inputs.get("frames")):
            lengths.append(values.evaluate(inputs["frames"]))
    except Exception:  # a value not known yet, or another node's error, which that node reports
        return None
    return min(lengths, default=None)


def check_experts(*names: str) -> None:
    """Raise InputError if a causal model is linked to one of the inputs `names` of the node being validated."""
    prompt, node = validating_prompt()
    for name in names:
        if loader_of(prompt, prompt[node]["inputs"].get(name)) == LOAD_CAUSAL:
            raise InputError(f"{name}: {ONLY_ROLLOUT}")


def check_steps() -> None:
    """Raise InputError if a sampler makes no step in the prompt that ComfyUI is validating. ComfyUI would do nothing
    for this sampler, so this pack's checks at sampling time would not run either."""
    prompt, _ = validating_prompt()
    values = PromptValues(prompt)
    for node, made in prompt.items():
        inputs = made["inputs"]
        if made.get("class_type") == "ManualSigmas" and not re.search(r"\d", str(inputs.get("sigmas", 0))):
            raise InputError(f"node {node}, ManualSigmas, holds no numbers: write falling ones that end with 0")
        if made.get("class_type") != "KSamplerAdvanced" or loader_of(prompt, inputs.get("model")) != LOAD_EXPERTS:
            continue
        try:
            first, last, steps = (values.evaluate(inputs[name]) for name in ("start_at_step", "end_at_step", "steps"))
        except (UnknownError, KeyError):
            continue
        if first >= min(last, steps):
            raise InputError(
                f"node {node}, KSampler (Advanced), begins at step {first} and ends at step {min(last, steps)}, so it "
                "makes no step: lower its start_at_step, or bypass the node"
            )


def loader_of(prompt: Prompt, link: Any) -> str | None:
    """Return the class of the loader behind a MODEL link: LOAD_EXPERTS, LOAD_CAUSAL, or None for another loader."""
    passed = set()
    while type_of(prompt, link) == MODEL and link[0] not in passed:
        passed.add(link[0])
        node = prompt[link[0]]
        if node["class_type"] in (LOAD_EXPERTS, LOAD_CAUSAL):
            return node["class_type"]
        links = [value for value in node["inputs"].values() if type_of(prompt, value) in (MODEL, ANYTHING)]
        link = links[0] if len(links) == 1 else None
    return None


def upstream_nodes(prompt: Prompt, node: str, types: Collection[str] | None = None) -> list[str]:
    """Return the ids of all nodes upstream of `node`, along links of these types (by default of all types)."""
    found, waiting = list[str](), [node]
    while waiting:
        links = [link for link in prompt[waiting.pop()]["inputs"].values() if is_link(link) and link[0] in prompt]
        new = [link[0] for link in links if (not types or type_of(prompt, link) in types) and link[0] not in found]
        found += new
        waiting += new
    return list(dict.fromkeys(found))


def other_schedule_warnings() -> Iterator[str]:
    """Yield a warning for each node upstream of the running node that makes a schedule for a different model."""
    with suppress(UnknownError):
        prompt, node = running_prompt()
        for each in upstream_nodes(prompt, node, ("SIGMAS",)):
            kind, inputs = prompt[each]["class_type"], prompt[each]["inputs"]
            if kind in OTHER_SCHEDULERS or inputs.get("model_type") in OTHER_MODELS:
                yield (
                    f"Node {each}, {kind}, makes the noise schedule of another model: connect LingBot-World Sigmas, or "
                    "Basic Scheduler after Model Sampling SD3."
                )


def time_tile_warnings(frames: int) -> list[str]:
    """Return a warning for each VAE Decode (Tiled) downstream of the running node that splits `frames` latent frames
    into temporal tiles. Nodes without ComfyUI's VAE, which begins a new video in each tile, are skipped."""
    try:
        prompt, node = running_prompt()
    except UnknownError:
        return []
    found, values = list[str](), PromptValues(prompt)
    for each, made in prompt.items():
        if made["class_type"] != TILED or node not in upstream_nodes(prompt, each, ("LATENT",)):
            continue
        with suppress(UnknownError, KeyError, TypeError):
            loader = prompt[made["inputs"]["vae"][0]]["class_type"]
            length = values.evaluate(made["inputs"]["temporal_size"])
            if loader == "VAELoader" and length // 4 < frames:
                found.append(
                    f"Node {each}, VAE Decode (Tiled), begins a new video every {length} frames with ComfyUI's VAE: "
                    f"connect Load LingBot-World VAE, or raise temporal_size to {4 * frames}."
                )
    return found


def type_of(prompt: Prompt, link: Any) -> str | None:
    """Return the declared type, such as "MODEL", of a linked node output, or None if the link leads nowhere."""
    if not is_link(link):
        return None
    known = node_classes()
    try:
        return known[prompt[link[0]]["class_type"]].RETURN_TYPES[link[1]]
    except (KeyError, IndexError, TypeError):
        return None
