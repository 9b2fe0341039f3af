"""A checkup of the machine that ComfyUI runs on."""

import comfy.model_management
import torch

from ...doctor.checkup import check
from ...doctor.page import page, row


def check_machine() -> tuple[str, str]:
    """Return the checkup of ComfyUI's device as a page, and as a line for docs/cards.md. Raises InputError for a wrong
    LINGBOT_WORLD_KERNELS."""
    comfy.model_management.soft_empty_cache()
    with torch.inference_mode():
        found = check(comfy.model_management.get_torch_device())
    comfy.model_management.soft_empty_cache()
    return page(found), row(found)
