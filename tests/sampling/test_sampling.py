"""Schedules and solvers against the official implementation's numbers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from lingbot_world.errors import InputError
from lingbot_world.options import PerExpert
from lingbot_world.sampling import (
    SOLVERS,
    first_low_step,
    flow_sigmas,
    flow_timesteps,
    guide,
    guide_scales,
    is_high_noise,
    solve,
)

CASES = json.loads((Path(__file__).parents[1] / "golden/scheduler/manifest.json").read_text())
EVERY_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: Path(case["file"]).stem)
EVERY_SOLVER = pytest.mark.parametrize("solver", SOLVERS)


def to_data(x, sigma):
    """The ideal model of normally distributed data; along its flow x**2 / variance(sigma) is constant."""
    return x * (1 - sigma) / variance(sigma)


def variance(sigma):
    return (1 - sigma) ** 2 + sigma**2


@EVERY_CASE
def test_schedule_equals_the_official_one(case, golden):
    expected = np.load(golden / case["file"])
    settings = case["steps"], case["shift"], case["solver"]
    sigmas, timesteps = flow_sigmas(*settings), flow_timesteps(*settings)
    assert timesteps.dtype == torch.int64
    assert timesteps.tolist() == expected["timesteps"].tolist()
    assert sigmas.dtype == torch.float32
    np.testing.assert_allclose(sigmas, expected["sigmas"], rtol=0, atol=1e-7)


@EVERY_CASE
def test_states_equal_the_official_ones(case, golden):
    expected, inputs = np.load(golden / case["file"]), np.load(golden / "scheduler/inputs.npz")
    a, b, c, d = (torch.from_numpy(inputs[f"coef_{name}"]) for name in "abcd")
    settings = case["steps"], case["shift"], case["solver"]
    timesteps = iter(flow_timesteps(*settings).tolist())

    def denoise(x, sigma):
        return x - sigma * (a * x + b * torch.sin(c * next(timesteps) / 1000) + d)

    states = []
    sampled = solve(
        case["solver"],
        denoise,
        torch.from_numpy(inputs["x0"]),
        flow_sigmas(*settings),
        lambda step, x, *_: states.append(x),
    )
    states = [*states[1:], sampled]
    for index, state in zip(expected["x_step_index"], expected["x_after_step"], strict=True):
        np.testing.assert_allclose(states[index], state, rtol=0, atol=5e-5)


@EVERY_CASE
def test_the_switch_comes_at_the_official_step(case):
    timesteps = flow_timesteps(case["steps"], case["shift"], case["solver"])
    for boundary, expected in case["first_low_noise_step"].items():
        assert first_low_step(timesteps, float(boundary)) == (case["steps"] if expected is None else expected)


@pytest.mark.parametrize(("steps", "shift"), [(120, 10.0), (60, 20.0)])
def test_equal_neighbouring_timesteps_are_no_obstacle(steps, shift):
    timesteps, sigmas = flow_timesteps(steps, shift), flow_sigmas(steps, shift)
    assert (timesteps.diff() == 0).any()
    noise = torch.randn(64, generator=torch.Generator().manual_seed(0))
    x = solve("unipc", to_data, noise, sigmas)
    torch.testing.assert_close(x, noise / variance(sigmas[0]).sqrt(), rtol=5e-2, atol=0)


@EVERY_SOLVER
def test_the_error_falls_with_the_square_of_the_steps(solver):
    def error(steps):
        sigmas = torch.linspace(0.95, 0.05, steps + 1, dtype=torch.float64)
        x = solve(solver, to_data, torch.ones(1, dtype=torch.float64), sigmas)
        return (x - (variance(sigmas[-1]) / variance(sigmas[0])).sqrt()).abs().item()

    assert error(64) < 2e-4
    assert error(256) / error(1024) > 10


@EVERY_SOLVER
def test_any_shape_is_sampled_and_nothing_is_written_into(solver):
    for shape in [(), (5,), (2, 16, 3, 4, 6)]:
        noise, sigmas = torch.ones(shape), flow_sigmas(4, 3.0, solver)
        kept = noise.clone(), sigmas.clone()
        x = solve(solver, to_data, noise, sigmas)
        assert x.shape == noise.shape
        assert x.dtype == torch.float32
        assert x.isfinite().all()
        assert torch.equal(noise, kept[0])
        assert torch.equal(sigmas, kept[1])


@EVERY_SOLVER
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_every_way_of_having_no_gradient_works(solver, mode):
    with mode():
        x = solve(solver, to_data, torch.ones(3), flow_sigmas(3, 5.0, solver))
    assert x.isfinite().all()
    assert not x.requires_grad


@EVERY_SOLVER
def test_a_schedule_from_pure_noise_or_cut_short_stays_finite(solver):
    for sigmas in ([1.0, 0.9, 0.5, 0.2, 0.0], [0.6, 0.3, 0.1], [0.7, 0.0], [0.7]):
        x = solve(solver, to_data, torch.full((3,), 0.4), torch.tensor(sigmas))
        assert x.isfinite().all()


@EVERY_SOLVER
def test_the_last_step_returns_the_data_itself(solver):
    seen = []
    x = solve(
        solver,
        to_data,
        torch.ones(3),
        flow_sigmas(5, 3.0, solver),
        lambda step, x, denoised, sigma: seen.append(denoised),
    )
    assert len(seen) == 5
    assert torch.equal(x, seen[-1])


@EVERY_SOLVER
def test_an_exception_in_the_callback_stops_the_loop(solver):
    calls = []

    def interrupt(step, x, denoised, sigma):
        calls.append(step)
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve(solver, to_data, torch.ones(3), flow_sigmas(9, 3.0, solver), interrupt)
    assert calls == [0, 1, 2]


@EVERY_SOLVER
def test_sigmas_that_do_not_fall_are_refused(solver):
    for sigmas in ([0.5, 0.5, 0.0], [0.2, 0.4], [1.5, 0.0], [float("nan"), 0.0]):
        with pytest.raises(InputError, match="fall"):
            solve(solver, to_data, torch.ones(3), torch.tensor(sigmas))


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ((0, 5.0, "unipc"), "^`sampling_steps` 0: at least 1"),
        ((5, 0.0, "unipc"), "^`shift` 0.0: a number over 0"),
        ((5, float("nan"), "unipc"), "^`shift` nan: a number over 0"),
        ((5, 5.0, "euler"), "solver 'euler' is not known"),
    ],
)
def test_schedules_that_cannot_be_are_refused(bad, said):
    with pytest.raises(InputError, match=said):
        flow_sigmas(*bad)


def test_equality_with_the_boundary_is_high_noise():
    assert is_high_noise(947, 0.947)
    assert not is_high_noise(946, 0.947)


def test_guidance():
    cond, uncond = torch.tensor([3.0]), torch.tensor([1.0])
    assert guide(cond, uncond, 5.0).item() == 11.0
    assert guide_scales(5) == PerExpert(high=5.0, low=5.0)
    assert guide_scales((4, 6)) == PerExpert(high=6.0, low=4.0)
    for bad in ((1, 2, 3), (), -1.0, float("nan")):
        with pytest.raises(InputError, match="`guide_scale` .*: expected one number"):
            guide_scales(bad)
