"""What is refused of a causal run before anything is loaded."""

import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from lingbot_world.errors import CameraError, InputError, LingBotError
from lingbot_world.headless.devices import find_decoding_device
from lingbot_world.headless.options import parse_lora
from lingbot_world.headless.plan import make_plan
from lingbot_world.headless.run import run
from lingbot_world.pipeline.state import load_state
from rollout_run_cases import pose_folder, toy_lora

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"guide_scale": 3.0}, "`guide_scale` has no effect: a causal model takes a few unguided steps"),
        ({"boundary": 0.9}, "`boundary` has no effect"),
        ({"solver": "dpmpp"}, "`solver` has no effect"),
        ({"negative": "blur"}, "`negative` has no effect"),
        ({"window": 4, "sink": 3}, "`window` 4 and `sink` 3: a window holds its sink and a chunk of 3"),
        ({"schedule": "fast"}, "`schedule` fast: expected v1, v2 or indices such as"),
        ({"schedule": "5,4"}, "expected one or more rising numbers"),
        ({"chunk": 5}, "`chunk` 5: expected 1, 2, 3 or 4 latent frames"),
        ({"chunk": 4, "window": 6, "sink": 3}, "`window` 6 and `sink` 3: .* a chunk of 4 latent frames, so at least 7"),
        ({"chunk": 4, "frame_num": 9}, "do not fill a chunk of 4 latent frames: at least 13 are needed"),
        ({"frame_num": 5}, "do not fill a chunk of 3 latent frames: at least 9 are needed"),
        ({"image": None}, "`image` is missing"),
        ({"continue_from": "nothing.state"}, "the state nothing.state does not exist"),
        ({"save_state": "/proc"}, "`save_state` /proc is a folder; name a file in it"),
        ({"save_state": "/proc/a/b.state"}, r"`save_state` /proc/a/b.state cannot be written: .* \(/proc\)"),
        ({"save_state": "b" * 255}, "`save_state` b+: File name too long, with the suffix .part"),
        ({"kv_cache": "disk"}, "`kv_cache` disk: expected one of auto, gpu, 8bit, host"),
        ({"decoder_device": "cuda:7"}, "`decoder_device` cuda:7: expected another CUDA GPU .* none: leave it out"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_makes_no_sense_for_a_causal_model_is_refused(changes, said, causal):
    with pytest.raises(LingBotError, match=said):
        make_plan(causal(**changes))


def test_the_base_model_refuses_what_belongs_to_causal_ones(causal, toy_package):
    for given in ({"window": 9}, {"chunk": 1}, {"decoder_device": "cuda:1"}):
        with pytest.raises(InputError, match=f"`{[*given][0]}` has no effect: the base model makes a video as a"):
            make_plan(causal(ckpt_dir=toy_package, **given))


def test_a_state_takes_the_place_of_no_other_file_but_of_the_one_it_goes_on_from(causal, toy_package, tmp_path):
    image, state = tmp_path / "photo.png", tmp_path / "first.state"
    shutil.copy(toy_package / "example/image.png", image)
    run(make_plan(causal(frame_num=9, save_state=state)))
    assert load_state(state).threads == torch.get_num_threads()
    with pytest.raises(InputError, match=f"{image} is the `image`, which would be replaced"):
        make_plan(causal(image=image, save_state=image, overwrite=True, output=tmp_path / "a.mp4"))
    with pytest.raises(InputError, match=f"{state} exists already; write elsewhere, or give `overwrite`"):
        make_plan(causal(save_state=state, output=tmp_path / "a.mp4"))
    make_plan(causal(save_state=state, output=tmp_path / "a.mp4", overwrite=True))
    (frames := tmp_path / "frames").mkdir()
    for number in range(12):
        shutil.copy(image, frames / f"frame_{number:05}.png")
    with pytest.raises(InputError, match="frame_00011.png is the `image`, which would be replaced"):
        make_plan(causal(image=frames / "frame_00011.png", output=frames, frame_num=9, overwrite=True))
    (empty := tmp_path / "empty").touch()
    make_plan(causal(save_state=empty, output=tmp_path / "a.mp4", overwrite=True))
    os.mkfifo(pipe := tmp_path / "pipe")
    (words := tmp_path / "words.txt").write_text("a diary")
    for other in (words, pipe, toy_package / "lingbot_world_fast/model.safetensors"):
        with pytest.raises(InputError, match=f"`save_state` {other} exists and is not a state; `overwrite`"):
            make_plan(causal(save_state=other, output=tmp_path / "a.mp4", overwrite=True))
    going_on = {"image": None, "width": None, "height": None, "continue_from": state}
    make_plan(causal(**going_on, save_state=state, output=tmp_path / "a.mp4"))


def test_frames_are_decoded_by_another_gpu_that_is_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    first, second = torch.device("cuda"), torch.device("cuda:1")
    assert find_decoding_device(None, first) == first
    assert find_decoding_device("cuda:1", first) == second
    assert find_decoding_device("cuda:0", second).index == 0
    for name, device in (("cuda:0", first), ("cuda:1", second), ("cuda:3", first), ("cpu", first)):
        with pytest.raises(InputError, match=r"another CUDA GPU than `device` .* cuda:\d or cuda:\d"):
            find_decoding_device(name, device)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schedule": "v2"}, "`schedule` has no effect: LingBot-World 2.0 causal-pretrain takes `sampling_steps`"),
        ({"guide_scale": (5.0, 4.0)}, "is one model, give one number"),
        ({"sampling_steps": 0}, "steps"),
        ({"boundary": 0.9}, "`boundary` has no effect"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_makes_no_sense_for_causal_pretrain_is_refused(changes, said, causal, pretrain):
    with pytest.raises(LingBotError, match=said):
        make_plan(causal(ckpt_dir=pretrain, **{"schedule": None} | changes))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("high=night.safetensors", "night.safetensors is for the high-noise expert, and .* is one model by itself"),
        ("other.safetensors", "`lora` .*other.safetensors does not exist"),
        ("empty", "`lora` .* is a folder without weights"),
        ("night.safetensors:nan", "its strength is nan, expected a finite number"),
    ],
)
def test_loras_that_do_not_belong_are_refused(causal, toy_package, tmp_path, name, said):
    toy_lora(tmp_path / "night.safetensors", toy_package)
    (tmp_path / "empty").mkdir()
    given = parse_lora(name)
    with pytest.raises(InputError, match=said):
        make_plan(causal(lora=(replace(given, path=tmp_path / given.path),)))


def test_a_state_that_would_replace_the_video_is_refused_before_the_run(causal, tmp_path):
    video = tmp_path / "video.mp4"
    with pytest.raises(InputError, match=f"`save_state` {video} is the video's file"):
        make_plan(causal(output=video, save_state=video))
    make_plan(causal(output=video, save_state=tmp_path / "new folder/x.state"))
    assert not (tmp_path / "new folder").exists()


def test_a_path_shorter_than_a_chunk_is_named_with_its_poses(causal, tmp_path):
    folder = pose_folder(tmp_path / "short", np.load(causal().action_path / "poses.npy")[:8])
    with pytest.raises(CameraError, match=f"`action_path` {folder}: 8 poses; a causal model needs at least 9, a chunk"):
        make_plan(causal(action_path=folder, frame_num=81))
