"""What the VAE is said to need, against a count of its tensors."""

import sys
from types import ModuleType

import pytest
import torch
from lingbot_world.pipeline.geometry import explicit_geometry
from lingbot_world.pipeline.memory import VAE_CONVOLUTION, VAE_DECODE, VAE_STATE, estimate_decoding, estimate_encoding
from lingbot_world.vae.network import Decoder, Encoder
from lingbot_world.vae.pooled import PooledDecoder
from lingbot_world.vae.splitting import Stripe
from lingbot_world.vae.weights import VAE, prepare, vae_shapes
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LivingTensors(TorchDispatchMode):
    """Counts the bytes of all tensors that are made under it, as long as they live; `peak` is the most at a time."""

    def __init__(self):
        super().__init__()
        self.peak, self._storages = 0, {}

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        out = operation(*arguments, **(options or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._storages.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        self._storages = {key: each for key, each in self._storages.items() if not each[0].expired()}
        self.peak = max(self.peak, sum(nbytes for _, nbytes in self._storages.values()))
        return out


@pytest.mark.parametrize(("height", "width"), [(480, 832), (256, 256)])
def test_estimates_of_the_vae_are_what_its_tensors_come_to(height, width, monkeypatch):
    one_kernel = lambda x, *rest: torch.empty_like(x)  # noqa: E731  as on a GPU, where these have no steps between
    monkeypatch.setattr(torch.nn.functional, "rms_norm", one_kernel)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", one_kernel)
    weights = prepare(
        {name: torch.empty(shape, device="meta") for name, shape in vae_shapes(96).items()}, "meta", torch.float32
    )

    def empty(*shape):
        return torch.empty(shape, device="meta").contiguous(memory_format=torch.channels_last)

    latent, frame = empty(1, 16, height // 8, width // 8), empty(1, 3, height, width)
    decoder, encoder = Decoder(weights), Encoder(weights)
    with LivingTensors() as decoding:
        for _ in range(3):
            list(decoder.decode(latent))
    with LivingTensors() as encoding:
        for index in range(9):
            encoder.encode(frame if index == 0 else frame.clone())
    stages = [estimate(96, explicit_geometry(width, height, 81)) for estimate in (estimate_encoding, estimate_decoding)]
    convolution = VAE_CONVOLUTION * 96 * height * width
    counted = [peak + convolution for peak in (encoding.peak, decoding.peak)]
    held = 0.02 if sys.version_info >= (3, 11) else 0.05  # Python 3.10 holds a call's arguments until it returns
    assert [stage.work for stage in stages] == pytest.approx(counted, rel=held)
    assert stages[0].weights == pytest.approx(126_892_531 * 4, rel=0.01)


def test_the_pools_need_no_more_than_the_plain_decoder(monkeypatch):
    def convolve(x, _slots, weight, _bias, size, side, _added=None):
        height, width = (2 * length if side == 2 else length for length in size)
        return x.new_empty((height + 1) * (width + 1), len(weight) // 4 if side == 2 else len(weight))

    kernels = ModuleType("lingbot_world.model.kernels.convolution")
    kernels.convolve, kernels.store = convolve, lambda *_: None
    monkeypatch.setitem(sys.modules, kernels.__name__, kernels)
    monkeypatch.setattr("lingbot_world.model.kernels.convolution", kernels, raising=False)
    shapes = vae_shapes(96).items()
    weights = prepare({name: torch.empty(shape, device="meta") for name, shape in shapes}, "meta", torch.float32)
    decoder = PooledDecoder(VAE(weights))
    latent = torch.empty(1, 16, 60, 104, device="meta").contiguous(memory_format=torch.channels_last)
    with LivingTensors() as decoding:
        _views = [weight.detach() for weight in weights.values()]  # now they are counted, and no part of the work
        counted = decoding.peak
        for _ in range(3):
            list(decoder.decode(latent))
    estimate = estimate_decoding(96, explicit_geometry(832, 480, 81))
    state = sum(tensor.nbytes for tensors in decoder.past.values() for tensor in tensors)
    assert 0.85 * estimate.work < decoding.peak - counted < 0.9 * estimate.work
    assert state < estimate.work * VAE_STATE / VAE_DECODE


@pytest.mark.parametrize("count", [2, 4])
def test_a_stripe_needs_what_is_said(count):
    shapes = vae_shapes(96).items()
    weights = prepare({name: torch.empty(shape, device="meta") for name, shape in shapes}, "meta", torch.float32)
    decoder = Decoder(weights, stripe=Stripe.of(60, 104, 1, count))
    latent = torch.empty(1, 16, 60, 104, device="meta").contiguous(memory_format=torch.channels_last)
    with LivingTensors() as decoding:
        for _ in range(3):
            list(decoder.decode(latent))
    estimate = estimate_decoding(96, explicit_geometry(832, 480, 81), processes=count)
    assert 0.7 * estimate.work < decoding.peak < estimate.work


def test_decoding_in_half_needs_half():
    whole, half = (estimate_decoding(96, explicit_geometry(832, 480, 81), half=half) for half in (False, True))
    assert (2 * half.weights, 2 * half.work) == (whole.weights, whole.work)


@pytest.mark.parametrize(("estimate", "growth"), [(estimate_encoding, 1), (estimate_decoding, 1.05)])
def test_the_vae_in_tiles_needs_less_and_hardly_more_for_larger_frames(estimate, growth):
    whole, tiled = (estimate(96, explicit_geometry(832, 480, 81), tiling=tiling) for tiling in (False, True))
    assert tiled.total < whole.total / 2
    assert estimate(96, explicit_geometry(1280, 720, 81), tiling=True).total <= growth * tiled.total
