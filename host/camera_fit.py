"""Whether a camera fits its video, before anything of a prompt runs."""

from typing import Any

from .camera import check_fit
from .prompt_values import Prompt, PromptValues, UnknownError
from .queued_prompt import node_in_question

VIDEO_LATENTS = (
    "WanImageToVideo", "WanFirstLastFrameToVideo", "WanFunInpaintToVideo", "EmptyHunyuanLatentVideo",
)  # fmt: skip
"""ComfyUI's nodes whose `length` in frames is that of their latent."""


def check_camera_fits() -> None:
    """Raises CameraError where the Apply Camera that ComfyUI is validating gets a path that does not fit its latent."""
    try:
        prompt, node = node_in_question()
        inputs, values = prompt[node]["inputs"], PromptValues(prompt)
        path, control = values.of(inputs["camera"]), values.of(inputs["control"])
        latent_frames = (values.of(_length(prompt, inputs["latent"])) - 1) // 4 + 1
    except Exception:  # what is not known yet, or wrong with another node, which says so itself
        return
    check_fit(path, latent_frames, control)


def _length(prompt: Prompt, link: Any) -> Any:
    """The length, in frames, of the video latent that a link brings. Raises UnknownError."""
    node = prompt[link[0]]
    if node["class_type"] not in VIDEO_LATENTS:
        raise UnknownError
    return node["inputs"]["length"]
