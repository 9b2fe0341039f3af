"""A checkup of the machine that ComfyUI runs on."""

import comfy.model_management
import torch

from ...doctor.checkup import check
from ...doctor.page import page, row


def check_machine() -> tuple[str, str]:
    """Return the report of `doctor.checkup` for ComfyUI's device as a page of text, and as a row of docs/cards.md.
    Raises InputError for an invalid LINGBOT_WORLD_KERNELS."""
    comfy.model_management.soft_empty_cache()
    with torch.inference_mode():
        found = check(comfy.model_management.get_torch_device())
    comfy.model_management.soft_empty_cache()
    return page(found), row(found)
