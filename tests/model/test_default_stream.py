"""On a GPU: attention of another package that runs on CUDA's default stream, as SageAttention 2.x does."""

import sys
from pathlib import Path

import pytest
import torch
from lingbot_world.model.attention import choose_8bit
from lingbot_world.model.attention.streams import follows_stream, on_default_stream
from lingbot_world.model.config import ModelConfig
from lingbot_world.options import Window
from lingbot_world.pipeline.world import World, WorldMemory
from lingbot_world.sampling import few_step_schedule
from model_cases import random_state, with_state

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

STAND_IN = Path(__file__).parents[1] / "stand_ins" / "default_stream"
CONFIG = ModelConfig(
    dim=512, ffn_dim=1024, num_heads=4, num_layers=4, freq_dim=256, text_dim=128, text_len=32, causal=True
)
SIZE, CHUNKS = (32, 48), 14


@pytest.fixture(params=[False, True], ids=["default stream", "right stream"])
def right(request, monkeypatch):
    """The stand-in in place of sageattention, on a card of compute capability 8.6."""
    monkeypatch.syspath_prepend(STAND_IN)
    monkeypatch.setenv("LINGBOT_RIGHT_STREAM", str(int(request.param)))
    monkeypatch.delitem(sys.modules, "sageattention", raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device=None: (8, 6))
    monkeypatch.setenv("LINGBOT_WORLD_CARDS", "")
    forget_choices()
    yield request.param
    monkeypatch.undo()
    forget_choices()
    sys.modules.pop("sageattention", None)


def forget_choices():
    """Kernels are chosen again, for another card."""
    for name, module in list(sys.modules.items()):
        if name.startswith("lingbot_world."):
            for each in vars(module).values():
                getattr(each, "cache_clear", lambda: None)()


def attention(q, k, v, heads):
    return choose_8bit._sage(q, k, v, heads)


def test_a_stream_of_its_own_shows_which_stream_a_kernel_takes(right):
    q, k, v = torch.randn(3, 1, 512, 256, device="cuda").bfloat16()
    assert follows_stream(attention, q, k, v, 2) == right
    assert follows_stream(on_default_stream(attention), q, k, v, 2)


def video(model, graphs):
    """The latents of a walk, chunk by chunk."""
    world = World(model, SIZE, Window(6, 1), chunk=1, device="cuda", memory=WorldMemory(graphs=graphs))
    random = torch.Generator().manual_seed(1)
    world.prompt = torch.randn(1, 20, 128, generator=random)
    schedule = few_step_schedule((0, 250, 500, 750), 5.0)
    latents = []
    for _ in range(CHUNKS):
        noise = torch.randn(1, 16, 1, *SIZE, generator=random)
        y = torch.randn(1, 20, 1, *SIZE, generator=random)
        camera = torch.randn(1, 384, 1, *SIZE, generator=random)
        latents.append(world.chunk(noise, y, camera, schedule, lambda shape: torch.randn(shape, generator=random)))
    return torch.cat(latents, 2).cpu(), world


def test_a_recording_without_the_attention_is_not_used(right, caplog, monkeypatch):
    """Neither by the trial of its stream nor, without that, by its own."""
    model = with_state(CONFIG, {name: t.bfloat16() for name, t in random_state(CONFIG).items()}, torch.bfloat16)
    model = model.to(device="cuda")
    model.set_attention("8bit")
    exact, _ = video(model, graphs=False)
    got, world = video(model, graphs=True)
    errors = (got - exact).pow(2).mean((0, 1, 3, 4)).sqrt() / exact.pow(2).mean().sqrt()
    assert errors.max() < 1e-2
    assert world.graphs_recorded == right
    assert ("runs on CUDA's default stream alone" in caplog.text) is not right
    monkeypatch.setattr("lingbot_world.pipeline.world.may_be_recorded", lambda *_: True)
    tried, world = video(model, graphs=True)
    assert torch.equal(tried, got)
    assert world.graphs_recorded == right
    assert ("the first replay was wrong" in caplog.text) is not right
