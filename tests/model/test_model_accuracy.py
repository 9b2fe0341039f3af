"""bf16 against fp32 through forty blocks, and the bytes a forward holds against the formula."""

import weakref

import pytest
import torch
from lingbot_world.model.attention import exact as attention
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.model.memory import activation_bytes
from lingbot_world.model.ops.implementation import slices
from model_cases import random_inputs, random_state, with_state
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DEEP = ModelConfig(dim=128, ffn_dim=256, num_heads=2, num_layers=40, freq_dim=64, text_dim=64, text_len=32)
WIDE = ModelConfig(dim=256, ffn_dim=768, num_heads=2, num_layers=2, freq_dim=64, text_dim=64, text_len=32)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("seed", [0, 1])
def test_bf16_stays_close_to_fp32_through_forty_blocks(seed):
    state = {name: t.bfloat16() for name, t in random_state(DEEP, seed).items()}
    exact, rounded = with_state(DEEP, state), with_state(DEEP, state, torch.bfloat16)
    inputs = random_inputs(DEEP, 1, (3, 8, 8), seed + 2)
    want, got = exact(**inputs), rounded(**inputs)
    assert relative_rms(got, want) < 7e-3


def relative_rms(got, want):
    return float((got - want).square().mean().sqrt() / want.square().mean().sqrt())


class LiveBytes(TorchDispatchMode):
    """Bytes of all storages that appeared since the mode began and are still alive; `peak` is their maximum."""

    def __init__(self, before):
        super().__init__()
        self.live, self.peak = 0, 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in before}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return out

    def _count(self, storage):
        if storage._cdata in self._seen:
            return
        self._seen.add(storage._cdata)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())

    def _free(self, key, nbytes):
        self._seen.discard(key)
        self.live -= nbytes


def peak_bytes(model, inputs):
    given = [value for value in inputs.values() if value is not None]
    with LiveBytes([*model.parameters(), *given]) as live:
        model(**inputs)
    return live.peak


def peak_bytes_on_meta(model, inputs):
    """`peak_bytes` of a model without storage. The element-wise operations pass over the first and the last slice of
    their tokens alone: those between are as long as the first one, so that they hold what it holds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "lingbot_world.model.ops.implementation.slices",
            lambda *sizes: (every := [*slices(*sizes)])[:1] + every[1:][-1:],
        )
        return peak_bytes(model, inputs)


@pytest.mark.parametrize(("rows", "camera"), [(1, True), (2, True), (2, False)])
def test_a_forward_holds_no_more_than_the_formula_says(monkeypatch, rows, camera):
    monkeypatch.setattr("lingbot_world.model.ops.implementation.EAGER_TOKENS", 128)
    monkeypatch.setattr(attention, "multiplies_bf16", lambda: False)  # a GPU's kernels hold no scores
    grid = (2, 48, 48)
    state = random_state(WIDE)
    for name in state:
        if name.endswith("weight") and state[name].ndim == 2:
            state[name] = state[name].bfloat16()
    model = with_state(WIDE, state, torch.bfloat16)
    inputs = random_inputs(WIDE, rows, grid, text=WIDE.text_len)
    inputs["camera"] = inputs["camera"] if camera else None
    model(**inputs)
    measured = peak_bytes(model, inputs)
    formula = activation_bytes(WIDE, *grid, batch=rows, camera=camera)
    assert 0.89 * formula < measured <= formula


def attend_in_parts(q, k, v, heads, options):
    """Holds what cuDNN's attention does beside its result: that of the last keys, and the sums of both softmaxes."""
    held = torch.empty_like(q), torch.empty(2, q.shape[1], heads, device=q.device)
    result = torch.empty_like(held[0])
    del held
    return result


@pytest.mark.parametrize(("grid", "budget"), [((21, 60, 104), 5e9), ((21, 90, 160), 12e9)], ids=["480p", "720p"])
def test_a_full_size_step_fits_its_budget(grid, budget):
    """Two of the forty blocks without storage: stored in fp32, so that every weight is made anew as an NF4 one is."""
    config = ModelConfig(5120, 13824, 40, 2, freq_dim=256, text_dim=4096)
    model = LingBotWorldModel(config, device="meta", dtype=torch.float32, attention=attend_in_parts)
    model.compute_dtype = torch.bfloat16
    with torch.device("meta"):
        inputs = {
            "x": torch.empty(2, 36, *grid),
            "timestep": torch.empty(2),
            "context": torch.empty(2, 512, 4096),
            "camera": torch.empty(1, 384, *grid),
        }
    measured, formula = peak_bytes_on_meta(model, inputs), activation_bytes(config, *grid)
    assert measured <= budget
    assert 0.99 * formula < measured <= formula


@pytest.mark.parametrize("scores", [2**20, 2**9])
def test_attention_in_bf16_on_a_processor_is_attention(monkeypatch, scores):
    """In whichever parts, against fp64; torch's own kernel is twice as near."""
    monkeypatch.setattr(attention, "multiplies_bf16", lambda: True)
    monkeypatch.setattr(attention, "CPU_SCORES_BYTES", scores)
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, length, 96, generator=random).bfloat16() for length in (20, 37, 37))
    exact = attention.sdpa(q.double(), k.double(), v.double(), 3, {})
    got = attention.sdpa(q, k, v, 3, {})
    assert got.dtype == torch.bfloat16
    assert (got - exact).norm() < 0.006 * exact.norm()
    assert (got - exact).norm() > 0
