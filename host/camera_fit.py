"""Whether a camera fits its video, before anything of a prompt runs."""


from .camera import check_fit
from .prompt_values import PromptValues
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
        video = prompt[inputs["latent"][0]]
        if video["class_type"] not in VIDEO_LATENTS:
            return
        latent_frames = (values.of(video["inputs"]["length"]) - 1) // 4 + 1
    except Exception:  # what is not known yet, or wrong with another node, which says so itself
        return
    check_fit(path, latent_frames, control)
