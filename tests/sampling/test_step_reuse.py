"""Steps without the model: which ones they are, and what they change."""

import pytest
import torch
from lingbot_world.errors import InputError
from lingbot_world.sampling import StepReuse, flow_sigmas, solve
from lingbot_world.sampling.reuse import FIRST, LAST, MOST

STEPS = 40
SIGMAS = flow_sigmas(STEPS, 5.0)
SWITCH = 9


def asked_steps(field, threshold, switch=SWITCH):
    """The steps at which `field(sigma)`, a velocity, is asked; and the velocity of every step."""
    reuse, asked, velocities = StepReuse(threshold), [], []
    for step, sigma in enumerate(SIGMAS[:-1].tolist()):

        def ask(step=step, sigma=sigma):
            asked.append(step)
            return field(sigma)

        velocities.append(reuse.velocity(sigma, step < switch, STEPS - step, ask))
    assert reuse.calls == len(asked)
    return asked, velocities


def straight(sigma):
    return torch.tensor([1.0, -2.0]) + sigma * torch.tensor([0.5, 3.0])


def bent(sigma):
    return torch.tensor([1.0, sigma, 2 * sigma**3])


def wild(sigma):
    return torch.tensor([1.0, -1.0]) * (-1) ** SIGMAS.tolist().index(sigma)


def test_without_a_threshold_every_step_is_the_models():
    assert asked_steps(straight, 0.0)[0] == list(range(STEPS))


def test_a_straight_line_is_followed_to_the_bit_that_float32_allows():
    asked, velocities = asked_steps(straight, 0.01)
    assert len(asked) < STEPS / 2
    for sigma, velocity in zip(SIGMAS.tolist(), velocities, strict=False):
        torch.testing.assert_close(velocity, straight(sigma), rtol=1e-4, atol=1e-4)


def test_the_first_steps_of_each_expert_and_the_last_of_all_are_the_models():
    asked, _ = asked_steps(straight, 1.0)
    spared = {*range(FIRST), *range(SWITCH, SWITCH + FIRST), *range(STEPS - LAST, STEPS)}
    assert spared <= set(asked)
    gaps = [after - before - 1 for before, after in zip(asked, asked[1:], strict=False)]
    assert max(gaps) == MOST


def test_the_line_does_not_go_across_the_switch():
    """Another field from the switch on: a line through both would be far off."""
    reuse = StepReuse(1.0)
    for step, sigma in enumerate(SIGMAS[:-1].tolist()):
        high = step < SWITCH
        wanted = straight(sigma) if high else -straight(sigma)
        got = reuse.velocity(sigma, high, STEPS - step, lambda wanted=wanted: wanted)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_a_velocity_that_the_line_misses_is_asked_for():
    assert asked_steps(wild, 0.1)[0] == list(range(STEPS))


def test_a_higher_threshold_asks_less_and_errs_more():
    calls, errors = [], []
    for threshold in (0.0, 0.003, 0.01, 0.1):
        asked, velocities = asked_steps(bent, threshold)
        calls.append(len(asked))
        errors.append(
            max(
                float((got - bent(sigma)).norm() / bent(sigma).norm())
                for sigma, got in zip(SIGMAS.tolist(), velocities, strict=False)
            )
        )
        assert errors[-1] <= 3 * threshold  # what is bent grows worse after the last comparison
    assert calls == sorted(calls, reverse=True)
    assert errors == sorted(errors)
    assert calls[-1] < calls[0]


def test_the_solver_gives_nearly_the_same_with_half_of_the_calls():
    """A model whose x0 depends on where it is asked, so that errors of one step reach the next."""
    noise = torch.randn(64, generator=torch.Generator().manual_seed(0))

    def run(threshold):
        reuse, steps_left = StepReuse(threshold), iter(range(STEPS, 0, -1))

        def denoise(x, sigma):
            def ask():
                return (x - torch.tanh(x * (1.5 - sigma))) / sigma

            return x - sigma * reuse.velocity(float(sigma), True, next(steps_left), ask)

        return solve("unipc", denoise, noise, SIGMAS), reuse.calls

    (wanted, all_calls), (got, calls) = run(0.0), run(0.03)
    assert (all_calls, calls <= 26) == (STEPS, True)
    assert (got - wanted).norm() < 0.01 * wanted.norm()


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan")])
def test_a_threshold_that_is_no_share_is_refused(threshold):
    with pytest.raises(InputError, match="a share of the velocity from 0 to 1"):
        StepReuse(threshold)
