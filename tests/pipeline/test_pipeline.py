"""Sampling with both experts against the official implementation's runs."""

import json
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from lingbot_world.errors import CameraError
from lingbot_world.model.cache import CameraCache
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.pipeline import sample
from lingbot_world.sampling import StepReuse
from safetensors.torch import load_file

RUNS = json.loads((Path(__file__).parents[1] / "golden/e2e/manifest.json").read_text())["runs"]
EVERY_RUN = pytest.mark.parametrize("run", RUNS, ids=lambda run: Path(run["file"]).stem)
SETTINGS = {"steps": 6, "shift": 5.0, "guide_scale": (4.0, 6.0)}


def golden_model(golden: Path, expert: str, camera: bool = True) -> LingBotWorldModel:
    weights = load_file(golden / f"model/{expert}_noise_model_fp32.safetensors")
    if not camera:
        weights = {name: weight for name, weight in weights.items() if "cam" not in name and "c2ws" not in name}
    config = ModelConfig.from_shapes({name: weight.shape for name, weight in weights.items()}, 32, 2)
    model = LingBotWorldModel(config, device="meta", dtype=torch.float32)
    model.load_state_dict(weights, assign=True)
    return model


@pytest.fixture(scope="module")
def experts(golden):
    return golden_model(golden, "high"), golden_model(golden, "low")


@pytest.fixture(scope="module")
def inputs(golden):
    arrays = np.load(golden / "e2e/inputs.npz")
    names = ("noise", "y", "context", "context_null")
    return [torch.from_numpy(arrays[name])[None] for name in names] + [torch.from_numpy(arrays["plucker"])]


def record(model, into):
    return model.register_forward_hook(lambda module, arguments, output: into.append((module, output)))


@EVERY_RUN
def test_the_run_equals_the_official_one(run, golden, experts, inputs):
    expected = np.load(golden / run["file"])
    *conditioning, camera = inputs
    states, forwards = [], []
    hooks = [record(model, forwards) for model in experts]
    latent = sample(
        *experts,
        *conditioning,
        camera if run["camera"] else None,
        **SETTINGS,
        solver={"unipc": "unipc", "dpm++": "dpmpp"}[run["solver"]],
        callback=lambda step, x, *_: states.append(x),
    )
    for hook in hooks:
        hook.remove()
    assert [model is experts[0] for model, _ in forwards] == expected["is_high_noise_step"].tolist()
    np.testing.assert_allclose(torch.cat([*states[1:], latent]), expected["latents_after_step"], rtol=0, atol=1e-4)
    for row, name in enumerate(("noise_pred_cond", "noise_pred_uncond")):
        predictions = torch.stack([output[row] for _, output in forwards])
        np.testing.assert_allclose(predictions, expected[name], rtol=0, atol=5e-5)


def test_a_scale_of_one_leaves_the_negative_prompt_out(experts, inputs):
    noise, y, context, context_null, camera = inputs
    settings = SETTINGS | {"steps": 3}
    forwards = []
    hooks = [record(model, forwards) for model in experts]
    alone = sample(*experts, noise, y, context, None, camera, **settings | {"guide_scale": 1.0})
    for hook in hooks:
        hook.remove()
    assert [len(output) for _, output in forwards] == [1, 1, 1]
    guided = sample(*experts, noise, y, context, context_null, camera, **settings | {"guide_scale": (1.0, 1 + 1e-6)})
    torch.testing.assert_close(alone, guided, rtol=0, atol=1e-4)


def test_experts_are_fetched_at_their_first_step_and_the_high_one_let_go(golden, inputs):
    events, alive = [], []

    def fetch(name):
        def expert():
            assert all(reference() is None for reference in alive)
            model = golden_model(golden, name)
            alive.append(weakref.ref(model))
            events.append(name)
            return model

        return expert

    sample(fetch("high"), fetch("low"), *inputs, **SETTINGS, callback=lambda step, *_: events.append(step))
    assert events == ["high", 0, 1, "low", 2, 3, 4, 5]


def test_a_run_below_the_boundary_never_asks_for_the_high_expert(experts, inputs):
    def high():
        raise AssertionError("the high-noise expert has no step here")

    latent = sample(high, experts[1], *inputs, **SETTINGS | {"steps": 2}, boundary=1.0)
    assert latent.isfinite().all()


@pytest.fixture(scope="module")
def two_steps(experts, inputs):
    """The latent of two steps in no mode; and whether the arguments are as they were."""
    kept = [tensor.clone() for tensor in inputs]
    latent = sample(*experts, *inputs, **SETTINGS | {"steps": 2})
    return latent, all(torch.equal(tensor, copy) for tensor, copy in zip(inputs, kept, strict=True))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.enable_grad])
def test_every_grad_mode_gives_the_same_and_no_graph(mode, experts, inputs, two_steps):
    with mode():
        latent = sample(*experts, *inputs, **SETTINGS | {"steps": 2})
    assert not latent.requires_grad
    assert torch.equal(latent, two_steps[0])


def test_the_arguments_are_left_as_they_are(two_steps):
    assert two_steps[1]


def test_a_camera_for_experts_without_camera_layers_is_refused(golden, inputs):
    high, low = (golden_model(golden, name, camera=False) for name in ("high", "low"))
    with pytest.raises(CameraError, match="no camera layers"):
        sample(high, low, *inputs, **SETTINGS)


def test_bfloat16_stays_within_one_percent(golden, inputs):
    expected = torch.from_numpy(np.load(golden / "e2e/unipc.npz")["latents_after_step"][-1:])
    experts = [golden_model(golden, name).to(torch.bfloat16) for name in ("high", "low")]
    for model in experts:
        model.compute_dtype = torch.bfloat16
    latent = sample(*experts, *inputs, **SETTINGS)
    assert ((latent - expected).norm() / expected.norm()) < 0.01


def test_a_camera_cache_that_does_not_fit_is_given_up_and_the_step_repeated(experts, inputs, monkeypatch, caplog):
    steps = {"steps": 4, "shift": 15.0}
    without = sample(*experts, *inputs, **steps)
    filled = []

    def put(cache, block, affine):
        filled.append(block)
        if len(filled) % 2 == 0:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(CameraCache, "put", put)
    assert torch.equal(sample(*experts, *inputs, **steps, camera_cache_bytes=1 << 40), without)
    assert filled == [0, 1, 0, 1]
    assert caplog.text.count("camera cache did not fit") == 2


def test_steps_without_the_model_begin_anew_with_the_second_expert(experts, inputs):
    """Twelve steps, the first five of the high-noise expert. Those that follow from the steps before ask no model."""
    settings = SETTINGS | {"steps": 12, "shift": 3.0, "boundary": 0.85}
    forwards, seen, reuse = [], [], StepReuse(1.0)
    hooks = [record(model, forwards) for model in experts]
    latent = sample(*experts, *inputs, **settings, step_reuse=reuse, callback=lambda step, *_: seen.append(step))
    for hook in hooks:
        hook.remove()
    called = [model is experts[0] for model, _ in forwards]
    assert (called.count(True), 5 <= called.count(False) < 7) == (3, True)
    assert (reuse.calls, seen) == (len(called), list(range(12)))
    assert latent.isfinite().all()
