"""Runs with a camera cache, and what a cache holds on the way. Import after `embed`."""

from common import SIGMAS, guider, sample
from lingbot_world.host.sampling.sampler import FlowSolver

LAYERS = 3


def cached(high, low, mode="gpu", **options):
    made = guider(high, low, **options)
    made.set_camera_cache(mode)
    return made


def run(made, sigmas=SIGMAS):
    return sample(made, FlowSolver("unipc"), sigmas)


def held(patcher) -> int:
    """Blocks whose scale and shift are held."""
    cache = patcher.model.camera_cache
    return sum(block in cache._blocks for block in range(LAYERS))


class Watch:
    """Calls of the camera layers, and what each expert's cache held at the begin of each of its steps."""

    def __init__(self, *patchers):
        self.made, self.held = 0, [[] for _ in patchers]
        self._hooks = []
        for patcher, seen in zip(patchers, self.held, strict=True):
            model = patcher.model.diffusion_model
            for block in model.blocks:
                self._hooks.append(block.cam_shift_layer.register_forward_hook(self._count))
            self._hooks.append(
                model.patch_embedding.register_forward_pre_hook(lambda *_, p=patcher, s=seen: s.append(held(p)))
            )

    def _count(self, *_):
        self.made += 1
