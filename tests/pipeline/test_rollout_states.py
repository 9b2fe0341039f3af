"""Causal videos that go on with the command: their frames, and what is told and refused of a state."""

import shutil
from functools import partial

import numpy as np
import pytest
import torch
from lingbot_world.errors import CheckpointError, InputError
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.plan import make_plan
from lingbot_world.headless.run import run
from lingbot_world.options import Window
from lingbot_world.pipeline.state import load_state
from lingbot_world.vae import decode_latent, load_vae
from rollout_run_cases import frames_of, words_of
from safetensors.torch import save_file

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("chunk", "frames", "more"), [(None, 21, 24), (1, 9, 12), (4, 13, 16)])
def test_a_world_goes_on_where_its_state_ends(causal, tmp_path, chunk, frames, more):
    """The whole latent, decoded at once, has the frames of both videos."""
    first, second = tmp_path / "first.state", tmp_path / "second.state"
    run(make_plan(causal(save_state=first, chunk=chunk, frame_num=frames)))
    begun = frames_of(tmp_path / "video")
    shutil.rmtree(tmp_path / "video")
    going_on = {"continue_from": first, "save_state": second, "image": None, "width": None, "height": None}
    plan = make_plan(causal(prompt="a tower", seed=2, frame_num=more - 3, **going_on))
    assert plan.geometry.frames == more
    chunks = [(frames + 3) // 4 // plan.spec.chunk, more // 4 // plan.spec.chunk]
    assert "`image`" not in plan.notes[-1]
    assert "`image` is not needed" in make_plan(causal(continue_from=first, width=None, height=None)).notes[-1]
    run(plan)
    state = load_state(second)
    told = [(prompt.text, prompt.chunks) for prompt in state.prompts]
    assert told == [("a castle", chunks[0]), ("a tower", chunks[1])]
    assert torch.equal(state.latent[:, :, : (frames + 3) // 4], load_state(first).latent)
    whole = decode_latent(load_vae(plan.vae), state.latent).numpy()
    np.testing.assert_array_equal(whole, np.concatenate([begun, frames_of(tmp_path / "video")]))


def test_png_files_of_a_world_that_goes_on_follow_those_of_before(causal, tmp_path, capsys):
    """One folder holds the whole video; files behind it are told."""
    state, folder = tmp_path / "first.state", tmp_path / "video"
    run(make_plan(causal(frame_num=9, save_state=state, output=folder)))
    begun = frames_of(folder)
    words = words_of(causal(), output=folder, continue_from=state, seed=2, image=None, width=None, height=None)
    assert main(words) == 0
    assert "a longer video" not in capsys.readouterr().out
    assert sorted(file.name for file in folder.iterdir()) == [f"frame_{index:05}.png" for index in range(9 + 24)]
    assert np.array_equal(frames_of(folder)[:9], begun)
    (folder / "frame_00033.png").touch()
    assert main([*words, "--overwrite"]) == 0
    said = f"{folder} holds a longer video: its files from frame_00033.png to frame_00033.png are removed."
    assert said in capsys.readouterr().out
    assert len(list(folder.iterdir())) == 9 + 24


def test_another_release_that_goes_on_with_a_video_is_told(causal, second_release, tmp_path):
    first, second = tmp_path / "first.state", tmp_path / "second.state"
    run(make_plan(causal(frame_num=9, save_state=first)))
    options = partial(causal, frame_num=9, continue_from=first, image=None, width=None, height=None)
    assert "was made by" not in " ".join(make_plan(options()).notes)
    plan = make_plan(options(ckpt_dir=second_release, save_state=second))
    assert "The video so far was made by LingBot-World Fast; LingBot-World 2.0 continues it." in plan.notes
    assert plan.spec.window == Window()
    run(plan)
    assert load_state(second).release == "LingBot-World 2.0"


def test_a_world_goes_on_with_a_window_that_fits(causal, tmp_path):
    """What was made without a window may not fit any more."""
    first, second = tmp_path / "first.state", tmp_path / "second.state"
    run(make_plan(causal(save_state=first)))
    plan = make_plan(causal(continue_from=first, save_state=second, width=None, height=None, window=6, sink=3))
    assert "The video so far was made with window 0 and sink 0; it continues with 6 and 3." in plan.notes
    assert plan.spec.cache_window == Window(6, 3)
    run(plan)
    state = load_state(second)
    assert state.window == Window(6, 3)
    assert torch.equal(state.latent[:, :, :6], load_state(first).latent)
    plan = make_plan(causal(continue_from=second, width=None, height=None))
    assert plan.spec.window == Window(6, 3)


def test_states_that_do_not_belong_are_refused(causal, tmp_path):
    state = tmp_path / "a.state"
    run(make_plan(causal(frame_num=9, save_state=state)))
    with pytest.raises(InputError, match="`window` 5 and `sink` 3"):
        make_plan(causal(continue_from=state, window=5, sink=3))
    with pytest.raises(InputError, match="the state is of 48x32"):
        make_plan(causal(continue_from=state, width=96, height=32))
    damaged = tmp_path / "b.state"
    damaged.write_bytes(state.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="truncated or corrupt.*; expected a whole file that --save"):
        make_plan(causal(continue_from=damaged))
    with pytest.raises(InputError, match="not a walk that was kept .*; expected a folder with walk.json"):
        make_plan(causal(continue_from=tmp_path))
    other = tmp_path / "c.state"
    for metadata in (None, {"lingbot_world": "[" * 100_000}):
        save_file({"latent": torch.zeros(1)}, other, metadata)
        with pytest.raises(InputError, match="not a state of LingBot-World"):
            make_plan(causal(continue_from=other))
