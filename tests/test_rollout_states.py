"""Causal videos that go on: what a state holds, what it is checked for, and what is told of it."""

import json
import math
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
from rollout_run_cases import frames_of, small_options, words_of
from safetensors import safe_open
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_world_goes_on_where_its_state_ends(causal, tmp_path):
    """The whole latent, decoded at once, has the frames of both videos."""
    first, second = tmp_path / "first.state", tmp_path / "second.state"
    run(make_plan(causal(save_state=first)))
    begun = frames_of(tmp_path / "video")
    shutil.rmtree(tmp_path / "video")
    going_on = {"continue_from": first, "save_state": second, "image": None, "width": None, "height": None}
    plan = make_plan(causal(prompt="a tower", seed=2, **going_on))
    assert plan.geometry.frames == 24
    assert "`image`" not in plan.notes[-1]
    assert "`image` is not needed" in make_plan(causal(continue_from=first, width=None, height=None)).notes[-1]
    run(plan)
    state = load_state(second)
    assert [(prompt.text, prompt.chunks) for prompt in state.prompts] == [("a castle", 2), ("a tower", 2)]
    assert torch.equal(state.latent[:, :, :6], load_state(first).latent)
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
    assert main(words) == 0
    assert f"{folder} holds a longer video: its files from frame_00033.png on stay" in capsys.readouterr().out


def test_another_release_that_goes_on_with_a_video_is_told(causal, second_release, tmp_path):
    first, second = tmp_path / "first.state", tmp_path / "second.state"
    run(make_plan(causal(frame_num=9, save_state=first)))
    options = partial(causal, frame_num=9, continue_from=first, image=None, width=None, height=None)
    assert "was made by" not in " ".join(make_plan(options()).notes)
    plan = make_plan(options(ckpt_dir=second_release, save_state=second))
    assert "The video so far was made by LingBot-World Fast; LingBot-World 2.0 goes on." in plan.notes
    assert plan.spec.window == Window()
    run(plan)
    assert load_state(second).release == "LingBot-World 2.0"


def test_a_world_goes_on_with_a_window_that_fits(causal, tmp_path):
    """What was made without a window may not fit any more."""
    first, second = tmp_path / "first.state", tmp_path / "second.state"
    run(make_plan(causal(save_state=first)))
    plan = make_plan(causal(continue_from=first, save_state=second, width=None, height=None, window=6, sink=3))
    assert "The video so far was made with window 0 and sink 0; it goes on with 6 and 3." in plan.notes
    assert plan.spec.held == Window(6, 3)
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
    with pytest.raises(InputError, match="is a folder"):
        make_plan(causal(continue_from=tmp_path))
    other = tmp_path / "c.state"
    for metadata in (None, {"lingbot_world": "[" * 100_000}):
        save_file({"latent": torch.zeros(1)}, other, metadata)
        with pytest.raises(InputError, match="not a state of LingBot-World"):
            make_plan(causal(continue_from=other))


DAMAGES = {
    "prompt: values": ("prompt.0", lambda t: t[..., :32], r"prompt.0: shape .1, \d+, 32., expected 1 to 512 tokens"),
    "prompt: no batch": ("prompt.0", lambda t: t[0], "prompt.0: shape .*, expected 1 to 512"),
    "prompt: batch": ("prompt.0", lambda t: t.repeat(2, 1, 1), "prompt.0: shape .*, expected 1 to 512"),
    "prompt: long": ("prompt.0", lambda t: t[:, :1].repeat(1, 600, 1), "prompt.0: shape .1, 600.*, expected 1 to 512"),
    "prompt: empty": ("prompt.0", lambda t: t[:, :0], "prompt.0: shape .1, 0.*, expected 1 to 512"),
    "prompt: nan": ("prompt.0", lambda t: t * math.nan, "prompt.0: expected finite floating-point numbers"),
    "prompt: whole": ("prompt.0", lambda t: t.int(), "prompt.0: expected finite floating-point numbers"),
    "poses": ("poses", lambda t: t * 2, "poses: frame 0 .and 2 more. has a last row other than"),
    "rotation": ("poses", lambda t: torch.cat([t[:, :3] * 2, t[:, 3:]], 1), "poses: frame 0 .and 2 more. is not rigid"),
    "last pose": ("last_pose", torch.zeros_like, "last_pose: frame 0 has a last row other than"),
    "lens": ("lens", torch.zeros_like, "lens: frame 0 .and 2 more. has a focal length of zero or less"),
    "negative lens": ("lens", lambda t: -t, "lens: frame 0 .and 2 more. has a focal length of zero or less"),
    "half window": ("window", lambda _: 6.5, "window is 6.5, expected a whole number"),
    "small window": ("window", lambda _: 2, "`window` 2 and `sink` 0: a window holds its sink"),
    "scale": ("scale", lambda _: -1.0, "scale is -1.0, expected 0 or a length above it"),
    "no scale": ("scale", lambda _: math.nan, "scale is nan, expected 0"),
    "half chunks": ("prompts", lambda all: [all[0] | {"chunks": 1.0}], "chunks is 1.0, expected a whole number"),
    "no prompts": ("prompts", lambda _: [], "parts do not fit together: chunks"),
    "chunks": ("prompts", lambda all: [all[0] | {"chunks": n} for n in (-1, 2)], "parts do not fit together: chunks"),
}  # fmt: skip


@pytest.fixture(scope="module")
def whole_state(toy_package, tmp_path_factory):
    """A state of one chunk, as its tensors and its metadata."""
    folder = tmp_path_factory.mktemp("state")
    run(make_plan(small_options(toy_package, folder, frame_num=9, save_state=folder / "a.state")))
    with safe_open(folder / "a.state", "pt") as file:
        metadata = json.loads(file.metadata()["lingbot_world"])
    return load_file(folder / "a.state"), metadata


@pytest.mark.parametrize("case", [None, *DAMAGES])
def test_a_state_is_checked_when_it_is_read(whole_state, tmp_path, case):
    """All of it, so that nothing heavy begins with one that cannot go on. Without a damage it is taken."""
    tensors, metadata = (dict(part) for part in whole_state)
    tensors["prompt.1"], file = tensors["prompt.0"].clone(), tmp_path / "b.state"
    if case is not None:
        key, damage, said = DAMAGES[case]
        part = tensors if key in tensors else metadata
        part[key] = damage(part[key])
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file,
              {"lingbot_world": json.dumps(metadata)})  # fmt: skip
    if case is None:
        assert load_state(file).chunks == 1
        return
    with pytest.raises(InputError, match=rf"b\.state: not a state that can be continued \(.*{said}.*; write it again"):
        load_state(file)


def test_a_state_that_finds_the_disk_full_is_one_sentence_and_leaves_nothing(causal, tmp_path):
    """A limit on the size of files stands for the full disk."""
    resource, state = pytest.importorskip("resource"), tmp_path / "a.state"
    run(make_plan(causal(frame_num=9, save_state=state)))
    before, there = state.read_bytes(), {*tmp_path.iterdir()}
    made, limits = load_state(state), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(InputError, match=f"the state {state} cannot be written: .*File too large"):
            made.save(state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert state.read_bytes() == before
    assert {*tmp_path.iterdir()} == there
