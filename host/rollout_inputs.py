"""What a rollout makes of the MODEL, the CONDITIONING and the IMAGE that it is given."""

from typing import Any, NamedTuple

from torch import Tensor

from .conditioning import text_of_rollout
from .on_model import changed_nothing, for_rollout, not_called_words, unknown
from .patcher import copies_on_other_devices

ONE_DEVICE = "MultiGPU CFG Split divides the guidance, which a rollout does without: it runs on one device."


class RolloutInputs(NamedTuple):
    """The MODEL and the CONDITIONING that a rollout runs with, and what is said of what it leaves out."""

    patcher: Any
    positive: list
    notes: list[str]


def rollout_inputs(patcher, positive: list, image: Tensor | None) -> RolloutInputs:
    """Takes a causal model's MODEL. Raises InputError for a CONDITIONING that a rollout cannot use."""
    notes = [*not_called_words(patcher), *unknown(patcher), *changed_nothing(patcher)]
    positive, unread = text_of_rollout("positive", positive, patcher.model.diffusion_model.config)
    if image is not None and len(image) > 1:
        notes.append(f"start_image holds {len(image)} images; the video begins with the first.")
    if copies_on_other_devices(patcher):  # MultiGPU CFG Split has made them
        notes.append(ONE_DEVICE)
        patcher = patcher.clone()
        patcher.remove_additional_models("multigpu")
    patcher, left_out = for_rollout(patcher)
    patcher.model.watch_options()
    return RolloutInputs(patcher, positive, [*notes, *left_out, *unread])
