"""Training of the denoiser, base and causal at once, by flow matching on chunks and on whole videos.

A walk's next visit begins with the latents that the model made (`Made`), so it learns to correct its own errors."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from ...model.ops.implementation import or_else
from ...options import CAUSAL_SHIFT, FAST_INDICES
from ...sampling import few_step_schedule
from .adversary import Adversary
from .fit import Keep, Log, Phase, fit, replayed, slope_of
from .parameters import Parameters, Weights, load_weights
from .pool import Pool, given
from .prompts import draw
from .settings import CONFIG, SHIFT, SINK, WINDOW, Sizes, compute_dtype, config_of
from .twin import Network, Parts, causal_velocity, chunks, finished, projected, velocity
from .walks import camera_patches, ray_patches

SHARPER, FINER = 2.0, 8.0
"""The initial norms of queries and keys, and of camera patches: the 256 rays of a patch are nearly alike."""
RATE = 1.5e-3
CHUNKS = (1, 1, 3, 4)  # the chunk sizes from which each step draws; walks use chunks of 1
FIRST = 0.5  # the share of chunks at the first step's noise level, so that a walk can use one step
BASE_EVERY, BASE_MORE = 8, 3  # one step in 8 is of whole videos, in a batch 3 times as large
LATER_SHARE = 0.35  # the share of steps on walks with a later second half
LATER = (2, 10, 50, 250)
MOST_NOISE = 0.2  # the largest share of noise in the context
OWN = 0.75  # the share of walks with the model's own chunks as context
MOST = 6.0  # the limit of stored latents, so that errors do not grow from visit to visit
BLIND = 3  # latent frames of a later half without known context: they are not learned
SOFT = 0.1  # errors up to this count squared, larger ones linearly


class Given(NamedTuple):
    """The data of all steps: prompt embeddings, `pool.settled`, walks, and walks with a later second half."""

    texts: Tensor
    grey: Tensor
    walks: Pool
    later: Pool


class Made(NamedTuple):
    """A pool's latents by the model at their last visit; the true ones where `known`, bool [n], is False."""

    latent: Tensor
    known: Tensor


class Layout(NamedTuple):
    """The kind of a step."""

    chunk: int  # latent frames of a chunk, 0 for the whole video
    windowed: bool
    gap: int  # latent frames between the halves


WHOLE = Layout(0, False, 0)


def begun(folder: Path, seed: int, device: torch.device) -> Parameters:
    """Return the denoiser of a checkpoint in the folder, or a new one."""
    if (folder / "denoiser.pt").is_file():
        weights = load_weights(folder / "denoiser.pt")
        return Parameters.of(weights, config_of(weights).parameter_shapes(), device)
    parameters = Parameters.random(CONFIG.parameter_shapes(), seed, device)
    for name, weight in parameters.named().items():
        if "self_attn.norm_" in name:
            weight.mul_(SHARPER)
        elif name == "patch_embedding_wancamctrl.weight":
            weight.mul_(FINER)
    return parameters


def drawn(choice: Generator) -> Layout:
    """Draw a layout; `choice` is a CPU generator."""
    whole, is_later, windowed, chunk, gap = torch.rand(5, generator=choice).tolist()
    if whole < 1 / BASE_EVERY:
        return WHOLE
    later = LATER[int(gap * len(LATER))] if is_later < LATER_SHARE else 0
    return Layout(CHUNKS[int(chunk * len(CHUNKS))], bool(later) or windowed < 0.5, later)


def train_denoiser(
    start: Parameters, phase: Phase, data: Given, sizes: Sizes, log: Log, keep: Keep, seed: int, adversary: float = 0.0
) -> Parameters:
    """Train the denoiser from `start`. `adversary`: the relative length of the adversary's gradient, 0 for none."""
    device = start.flat.device
    random = Generator(device).manual_seed(4000 + seed)
    judge = Adversary(seed, device, random, adversary) if adversary else None
    steps = Steps(start, data, sizes, random, OWN, judge)
    choice = Generator().manual_seed(seed)

    def slope(_progress: float) -> tuple[Tensor, Tensor]:
        return steps.slope(drawn(choice))

    return fit("denoiser", start, slope, phase, RATE, log, 0.999, keep)


class Steps:
    """The loss and its gradient for random walks of `data`, by layout. On a GPU each layout is a CUDA graph."""

    def __init__(
        self,
        parameters: Parameters,
        data: Given,
        sizes: Sizes,
        random: Generator,
        own: float = OWN,
        adversary: Adversary | None = None,
    ) -> None:
        """`random`: a generator on the parameters' device."""
        self.device = parameters.flat.device
        self.parameters, self.data, self.sizes, self.random, self.own = parameters, data, sizes, random, own
        known = (torch.zeros(len(pool), dtype=torch.bool, device=self.device) for pool in (data.walks, data.later))
        latents = data.walks.latent.clone(), data.later.latent.clone()
        self.adversary, self.made = adversary, [Made(*each) for each in zip(latents, known, strict=True)]
        self.config = config_of(parameters.named())
        parameters.flat.requires_grad_()
        self.dtype, self.parts = compute_dtype(self.device), fastest(self.device)
        self.rays = ray_patches(sizes.height, sizes.width, self.device)
        self.runs: dict[Layout, Callable[[], tuple[Tensor, Tensor]]] = {}
        self.memory = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None

    def slope(self, layout: Layout) -> tuple[Tensor, Tensor]:
        """Return loss and gradient of a batch, valid until the next call."""
        if layout not in self.runs:
            once = partial(slope_of, self.parameters, partial(self.loss, layout))
            self.runs[layout] = once if self.memory is None else replayed(once, self.random, self.memory)
        return self.runs[layout]()

    def loss(self, layout: Layout, weights: Weights) -> Tensor:
        network = Network(cast_once(weights, self.dtype), self.config, self.dtype, self.parts)
        return self._of_whole(network) if layout == WHOLE else self._of_chunks(network, layout)

    def _of_whole(self, network: Network) -> Tensor:
        sizes, data, random, count = self.sizes, self.data, self.random, BASE_MORE * self.sizes.batch
        batch = data.walks[_some(data.walks, count, random)]
        clean = batch.latent[:, :, : sizes.base].float()
        sigma = shifted(torch.rand(count, device=clean.device, generator=random), SHIFT)
        noise = _like(clean, random)
        noisy = torch.lerp(clean, noise, sigma[:, None, None, None, None])
        x = torch.cat([noisy, given(batch.first, data.grey, sizes.base)], 1)
        camera = camera_patches(batch.steps[:, : sizes.base], self.rays)
        text = data.texts[draw(batch.kinds[:, 0])]
        made = velocity(network, x, (1000 * sigma).floor(), text, camera)
        return F.mse_loss(made, noise - clean)

    def _of_chunks(self, network: Network, layout: Layout) -> Tensor:
        sizes, data, random, chunk = self.sizes, self.data, self.random, layout.chunk
        frames, half = 2 * sizes.half, sizes.half
        pool, kept = (data.later, self.made[1]) if layout.gap else (data.walks, self.made[0])
        some = _some(pool, sizes.batch, random)
        batch, before, known = pool[some], kept.latent[some].float(), kept.known[some]
        window, sink = (WINDOW * half // 12, SINK * half // 12) if layout.windowed else (None, 0)
        attends = chunks(frames, chunk, window, sink, half if layout.gap else 0)
        image, camera = given(batch.first, data.grey, frames), camera_patches(batch.steps, self.rays)
        text = data.texts[draw(batch.kinds.flatten())].unflatten(0, (-1, 2))
        same = batch.kinds[:, 0] == batch.kinds[:, 1]
        text[:, 1] = torch.where(same[:, None, None], text[:, 0], text[:, 1])

        clean = batch.latent.float()
        past, (now, sigma) = _past(clean, before, self.own, random), _noised(before, known, chunk, random)
        past, asked = (torch.cat([part, image], 1) for part in (past, now))
        times = (1000 * sigma).floor()
        speed = causal_velocity(network, past, asked, times, text, camera, attends, layout.gap)
        made = now - sigma[:, None, :, None, None] * speed
        learned = torch.ones(frames, device=clean.device)
        if layout.gap:
            learned[half : half + -(-BLIND // chunk) * chunk] = 0
        found = torch.where(learned[:, None, None] > 0, made.detach().clamp(-MOST, MOST), clean)
        kept.latent[some] = found.to(kept.latent.dtype)
        kept.known.index_fill_(0, some, True)
        return self._judged(made, clean, sigma, learned)

    def _judged(self, made: Tensor, clean: Tensor, sigma: Tensor, learned: Tensor) -> Tensor:
        """Return the loss of `made` at noise levels `sigma` [n, f], on `learned` frames [f]."""
        error = (made - clean) / sigma[:, None, :, None, None]
        loss = (_robust(error) * learned[:, None, None]).mean() / learned.mean()
        if self.adversary is None:
            return loss
        slope = torch.autograd.grad(loss, made, retain_graph=True)[0]
        aim = (made * self.adversary.added(slope, made, clean, learned.expand_as(sigma))).sum()
        return aim + (loss - aim).detach()


def cast_once(weights: Weights, dtype: torch.dtype) -> Weights:
    """Copy all weights, the blocks' matrices in `dtype`: one cast for a whole step."""
    return {
        name: weight.to(dtype) if name.startswith("blocks.") and weight.ndim == 2 else weight.clone()
        for name, weight in weights.items()
    }


def fastest(device: torch.device) -> Parts:
    """Return a block's functions, compiled on a GPU."""
    if device.type != "cuda":
        return projected, finished
    from torch._dynamo import config

    config.recompile_limit = 64
    return (
        or_else(torch.compile(projected, dynamic=False), projected, "projected"),
        or_else(torch.compile(finished, dynamic=False), finished, "finished"),
    )


def _robust(error: Tensor) -> Tensor:
    """Return a robust penalty [n, f, h / 2, w / 2] of errors [n, 16, f, h, w]."""
    square = F.avg_pool2d(error.square().mean(1), 2)
    return (square + SOFT**2).sqrt() - SOFT + 0.25 * square


def _past(clean: Tensor, before: Tensor, own: float, random: Generator) -> Tensor:
    """Return the context: the model's own chunks for a share `own` of the walks, with some noise."""
    shape, device = (len(clean), 1, 1, 1, 1), clean.device
    taken = torch.rand(shape, device=device, generator=random) < own
    share = MOST_NOISE * torch.rand(shape, device=device, generator=random) ** 2
    return torch.lerp(torch.where(taken, before, clean), _like(clean, random), share)


def _noised(before: Tensor, known: Tensor, chunk: int, random: Generator) -> tuple[Tensor, Tensor]:
    """Return noised latents and their levels [n, f], one of the few steps for each chunk."""
    count, device = -(-before.shape[2] // chunk), before.device
    steps = _few_steps(device)
    step = torch.randint(0, len(steps), (len(before), count), device=device, generator=random)
    later = known[:, None] & (torch.rand(step.shape, device=device, generator=random) >= FIRST)
    sigma = steps[step * later].repeat_interleave(chunk, 1)[:, : before.shape[2]]
    return torch.lerp(before, _like(before, random), sigma[:, None, :, None, None]), sigma


@cache
def _few_steps(device: torch.device) -> Tensor:
    return torch.tensor(few_step_schedule(FAST_INDICES, CAUSAL_SHIFT).sigmas, device=device, dtype=torch.float32)


def _some(pool: Pool, count: int, random: Generator) -> Tensor:
    return torch.randint(0, len(pool), (count,), device=pool.latent.device, generator=random)


def _like(tensor: Tensor, random: Generator) -> Tensor:
    return torch.randn(tensor.shape, device=tensor.device, generator=random)


def shifted(base: Tensor, shift: float) -> Tensor:
    """Return the noise level at a share, 0 to 1, of the schedule."""
    return shift * base / (1 + (shift - 1) * base)
