"""The report of the node LingBotWorldCheckMachine on the machine that ComfyUI runs on."""

import comfy.model_management
import torch

from ..doctor.checkup import run_checkup
from ..doctor.page import format_checkup, table_row


def check_machine() -> tuple[str, str]:
    """Measure ComfyUI's device. Return (report, row): a text for the user, and a Markdown row for the table of GPUs in
    docs/cards.md. Raise InputError if the environment variable LINGBOT_WORLD_KERNELS is invalid."""
    comfy.model_management.soft_empty_cache()
    with torch.inference_mode():
        found = run_checkup(comfy.model_management.get_torch_device())
    comfy.model_management.soft_empty_cache()
    return format_checkup(found), table_row(found)
