"""Files of earlier versions still open: a package that 0.2 wrote, and states of 0.2 and 0.6 that a run continues."""

from pathlib import Path

import pytest
import torch
from lingbot_world.headless.command.cli import main
from lingbot_world.loaders import load_expert, open_checkpoint
from lingbot_world.options import Window
from lingbot_world.pipeline.spec import RolloutRequest, plan_rollout
from lingbot_world.pipeline.state import Prompt, load_state

EARLIER = Path(__file__).parents[1] / "data" / "earlier"
PACKAGE = EARLIER / "causal-0.2"
SIZE = (4, 6)
CHUNK = 3


def test_a_package_of_0_2_passes_verify_and_inspect(capsys):
    main(["verify", str(PACKAGE)])
    assert "nf4, made from src1; " in capsys.readouterr().out
    main(["inspect", str(PACKAGE)])
    assert "causal" in capsys.readouterr().out


@pytest.mark.parametrize("version", ["0.2", "0.6"])
def test_a_run_continues_a_state_of_an_earlier_version(version):
    checkpoint = open_checkpoint(PACKAGE)
    model = load_expert(checkpoint, dtype=torch.float32)
    state = load_state(EARLIER / f"{version}.state")
    assert (state.window, state.chunk, state.frames, state.prompts[0].text) == (Window(0, 0), CHUNK, 9, "a castle")
    spec = plan_rollout(model.config, checkpoint.release, RolloutRequest(frames=12), state=state)
    generator = torch.Generator().manual_seed(1)
    image, noise = (torch.randn(1, 16, frames, *SIZE, generator=generator) for frames in (1, CHUNK))
    prompt = torch.randn(1, 5, 64, generator=generator)
    latents = list(
        spec.loop.run(
            model,
            spec.chunks(image, noise, prompt),
            lambda shape: torch.randn(shape, generator=generator),
            device="cpu",
        )
    )
    after = spec.state_after(latents[-1], Prompt("a tower", prompt, 0))
    assert torch.equal(after.latent[:, :, :CHUNK], state.latent)
    assert after.latent.isfinite().all()
    assert [(prompt.text, prompt.chunks) for prompt in after.prompts] == [("a castle", 1), ("a tower", 1)]
