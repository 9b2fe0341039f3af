"""The display of a rollout (a causal model's video) on its node while it runs."""

from contextlib import nullcontext

import comfy.utils
import latent_preview
import torch
from torch import Tensor

from ...pipeline.delivery import Delivery
from ...pipeline.spec import RolloutSpec


class RolloutDisplay:
    """A progress bar and previews of a rollout (a causal model's video). `delivery` collects the finished chunks."""

    def __init__(self, patcher, spec: RolloutSpec, device: torch.device) -> None:
        self._spec, self._done = spec, spec.latent_frames_before // spec.chunk
        self._forwards = len(spec.schedule.timesteps) + 1
        self._bar = comfy.utils.ProgressBar(spec.geometry.frames)
        self._previewer = _previewer(patcher)
        # A preview's work on the GPU runs on a stream of its own, in parallel with the next chunk's forwards.
        self._aside = torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()
        self.delivery = Delivery(self._preview)

    def forward_done(self, number: int, forward: int) -> None:
        """Show the preview of the previous chunk if it is still queued. Then advance the progress bar to forward pass
        `forward` (from 0) of chunk `number`."""
        self.delivery.forward_done(number, forward)
        first, last = self._frames(number), self._frames(number + 1)
        self._show(first + (last - first) * forward // self._forwards)

    def add(self, number: int, latent: Tensor) -> None:
        """Queue the latent of chunk `number` for delivery to host memory. A chunk of the earlier video that the rollout
        continues is not delivered: it only advances the progress bar."""
        if number < self._done:
            self._bar.update_absolute(number + 1, self._done)
        else:
            self.delivery.add(latent, number)

    def _preview(self, latent: Tensor, number: int) -> None:
        with self._aside:  # ComfyUI's previewers do not wait for a latent that is on a GPU
            preview = self._previewer.decode_latent_to_preview_image("JPEG", latent[:, :, -1:])
        self._show(self._frames(number + 1), preview)

    def _frames(self, number: int) -> int:
        return self._spec.frames_until((number - self._done) * self._spec.chunk)

    def _show(self, frames: int, preview: tuple | None = None) -> None:
        self._bar.update_absolute(frames, self._spec.geometry.frames, preview)


def _previewer(patcher) -> latent_preview.LatentPreviewer:
    space = patcher.model.latent_format
    chosen = latent_preview.get_previewer(patcher.load_device, space)
    return chosen or latent_preview.Latent2RGBPreviewer(space.latent_rgb_factors, space.latent_rgb_factors_bias)
