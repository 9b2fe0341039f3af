"""The report of the node LingBotWorldCheckMachine on the machine that ComfyUI runs on."""

import comfy.model_management
import torch

from ..doctor.checkup import check
from ..doctor.page import page, row


def check_machine() -> tuple[str, str]:
    """Return two texts about ComfyUI's device: a report, and the device's row for the table in docs/cards.md. Raises
    InputError if the environment variable LINGBOT_WORLD_KERNELS is invalid."""
    comfy.model_management.soft_empty_cache()
    with torch.inference_mode():
        found = check(comfy.model_management.get_torch_device())
    comfy.model_management.soft_empty_cache()
    return page(found), row(found)
