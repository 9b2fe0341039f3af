"""`generate` with a causal model: chunks written as they come, and what a user is told of them."""

import io
import shutil
import sys
import threading
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from lingbot_world.headless import preparation, rollout, rollout_plan, stages
from lingbot_world.headless import run as run_module
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.plan import make_plan
from lingbot_world.headless.run import run
from lingbot_world.options import LoraFile, Window
from lingbot_world.pipeline.rollout_memory import RolloutMemory
from lingbot_world.pipeline.state import load_state
from lingbot_world.vae import VideoDecoder
from rollout_run_cases import frames_of, length_of, pose_folder, toy_lora, words_of

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_video_has_the_frames_of_its_chunks(causal, tmp_path):
    result = run(make_plan(causal()))
    assert frames_of(tmp_path / "video").shape == (21, 32, 48, 3)
    assert [stage.name for stage in result.stages] == ["text", "VAE encode", "load causal model", "chunks"]


@pytest.mark.parametrize(("both_fit", "order"), [(True, ["text", "VAE encode"]), (False, ["VAE encode", "text"])])
def test_what_a_run_needs_may_be_made_while_the_text_encoder_works(causal, tmp_path, monkeypatch, both_fit, order):
    """On a GPU with room for all of it, or for all but the image beside the text; here such a GPU's answer is given."""
    run(make_plan(causal()))
    want, encode = frames_of(tmp_path / "video"), run_module.encode_prompts
    made = {stages: "load_expert", preparation: "encode_first_frame"}
    ended = {name: threading.Event() for name in made.values()}

    def told(work, event):
        def work_and_tell(*arguments, **settings):
            result = work(*arguments, **settings)
            event.set()
            return result

        return work_and_tell

    def encode_prompts(*arguments):
        assert all(event.wait(60) for event in ended.values())  # by other threads
        return encode(*arguments)

    for room, name in made.items():
        monkeypatch.setattr(room, name, told(getattr(room, name), ended[name]))
    monkeypatch.setattr(preparation, "_plan_parallel", lambda *_: (RolloutMemory(), both_fit))
    monkeypatch.setattr(run_module, "encode_prompts", encode_prompts)
    result = run(make_plan(causal(output=tmp_path / "again" / "*.png")))
    assert [stage.name for stage in result.stages] == [*order, "load causal model", "chunks"]
    assert np.array_equal(frames_of(tmp_path / "again"), want)


def test_a_number_too_large_for_fp16_has_the_frames_decoded_in_fp32(causal, tmp_path, monkeypatch, caplog):
    """In the second chunk of a run that continues another: what the decoder remembers is made again too."""

    def frames_in(vae_dtype, **changes):
        shutil.rmtree(tmp_path / "video", ignore_errors=True)
        run(make_plan(causal(vae_dtype=vae_dtype, **changes)))
        return frames_of(tmp_path / "video")

    later = {"continue_from": tmp_path / "first.state", "image": None, "width": None, "height": None}
    frames_in("fp32", frame_num=9, width=16, height=16, save_state=tmp_path / "first.state")
    exact, half = frames_in("fp32", **later), frames_in("fp16", **later)
    assert 0 < np.abs(exact.astype(int) - half).max() <= 3
    check = VideoDecoder.check
    for bad in (1, 3):  # the state has a chunk, the run two more
        calls, decoders = [], []

        def overflow(decoder, calls=calls, decoders=decoders, bad=bad):
            calls.append(1)
            if len(calls) == bad:
                decoders.append(weakref.ref(decoder))
                raise OverflowError("too large")
            assert not any(old() for old in decoders)  # its memory is free again
            check(decoder)

        monkeypatch.setattr(VideoDecoder, "check", overflow)
        mixed = frames_in("fp16", **later)
        right = 12 * max(0, bad - 2)
        np.testing.assert_array_equal(mixed, np.concatenate([half[:right], exact[right:]]))
    assert caplog.text.count("decoded again, in fp32: too large. With `vae_dtype` fp32") == 2


def test_another_device_decodes_the_same_frames(causal, tmp_path, monkeypatch, caplog):
    """The processor by its number stands for another GPU. A number too large for fp16 has that one decode in fp32."""
    run(make_plan(causal()))
    want, check, load = frames_of(tmp_path / "video"), VideoDecoder.check, preparation.load_vae
    other, checks, devices = torch.device("cpu", 0), [], []
    monkeypatch.setattr(rollout_plan.devices, "find_decoding_device", lambda *_: other)
    plan = make_plan(causal(output=tmp_path / "other" / "*.png"))
    assert plan.planner().decoder.elsewhere

    def load_vae(weights, *, device):
        devices.append(device)
        return load(weights, device=device)

    def overflow(decoder):
        checks.append(1)
        if len(checks) == 1:
            raise OverflowError("too large")
        check(decoder)

    for module in (preparation, rollout):
        monkeypatch.setattr(module, "load_vae", load_vae)
    monkeypatch.setattr(VideoDecoder, "check", overflow)
    run(plan)
    assert "decoded again, in fp32: too large" in caplog.text
    assert devices == [plan.device, other, other]
    assert np.array_equal(frames_of(tmp_path / "other"), want)


def test_a_video_can_go_into_a_pipe(causal, monkeypatch):
    taken = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", type("Stdout", (), {"buffer": taken})())
    run(make_plan(causal(output="-", frame_num=9)))
    taken.seek(0)
    assert length_of(taken) == 9


def test_the_command_says_what_it_makes_and_under_which_licence(causal, second_release, tmp_path, capsys):
    code = main(words_of(causal(), ckpt_dir=second_release, frame_num=13, output=tmp_path))
    said, wrong = capsys.readouterr()
    assert code == 0, wrong
    assert "LingBot-World 2.0 (CC BY-NC-SA 4.0, for non-commercial use)" in said
    assert "the camera stands still" in said
    assert "48x32, 13 frames, 1 chunk on cpu" in said


def test_causal_pretrain_makes_guided_chunks_and_keeps_its_negative_prompt(pretrain, causal, tmp_path, capsys):
    """And a scale of 1 leaves it out."""
    words = words_of(causal(), ckpt_dir=pretrain, frame_num=9, sampling_steps=2, output=tmp_path / "a/*.png")
    for name, more in {"guided": ("--negative", "blur"), "plain": ("--guide_scale", "1")}.items():
        state = str(tmp_path / f"{name}.state")
        assert main([*words, "--overwrite", "--save_state", state, *more]) == 0, capsys.readouterr().err
    guided, plain = (load_state(tmp_path / f"{name}.state") for name in ("guided", "plain"))
    assert "causal-pretrain" in guided.release
    assert guided.prompts[0].negative.shape[2] == guided.prompts[0].context.shape[2]
    assert plain.prompts[0].negative is None
    sizes = {"image": None, "width": None, "height": None, "schedule": None}
    on = causal(ckpt_dir=pretrain, **sizes, sampling_steps=2, continue_from=tmp_path / "guided.state")
    run(make_plan(on))
    assert frames_of(tmp_path / "video").shape[0] == 24


def test_releases_have_schedules_and_windows_of_their_own(causal, toy_package):
    plan = make_plan(causal(schedule=None))
    assert (plan.spec.window, plan.spec.schedule.timesteps[1], plan.spec.cache_window.frames) == (Window(), 978, 6)
    plan = make_plan(causal(schedule="v2", window=9, sink=3, shift=5.0))
    assert (plan.spec.window, plan.spec.schedule.timesteps) == (Window(9, 3), (999, 937, 833, 624))
    assert plan.spec.cache_window == Window(6, 3)
    assert make_plan(causal(schedule="0,500")).spec.schedule.timesteps == (999, 908)


def test_a_lora_acts_in_every_chunk_and_is_told(causal, toy_package, tmp_path):
    night = toy_lora(tmp_path / "night.safetensors", toy_package)
    run(make_plan(causal()))
    plain = frames_of(tmp_path / "video").astype(int)
    plan = make_plan(causal(lora=(LoraFile(night, 2.0),), overwrite=True))
    assert plan.notes[1] == "LoRA night.safetensors, strength 2"
    shutil.rmtree(tmp_path / "video")
    run(plan)
    gap = np.abs(frames_of(tmp_path / "video") - plain).mean((1, 2, 3))
    assert gap[:9].max() > 1
    assert gap[9:].max() > 1


def test_what_the_user_should_know_of_a_path_is_told(causal, tmp_path):
    """The example's path has 81 poses."""
    state = tmp_path / "a.state"
    first = make_plan(causal(frame_num=9, save_state=state))
    assert first.notes[-1].startswith("The first 9 of the camera path's 81 poses are used; a continued run begins")
    assert "poses" not in " ".join(make_plan(causal(frame_num=81)).notes)
    cut = "Frames come in whole chunks, so 9, 21, 33 and so on: the video has 21 frames, not 29."
    assert cut in make_plan(causal(frame_num=29)).notes
    run(first)
    going_on = partial(causal, continue_from=state, width=None, height=None)

    def told(poses, frames):
        return make_plan(going_on(action_path=pose_folder(tmp_path / "path", poses), frame_num=frames)).notes

    example = np.load(causal().action_path / "poses.npy")
    far = example.copy()
    far[:, :3, 3] *= 100
    assert "longest step is" not in " ".join(told(example[:9], 81))
    assert "times that of the video's first path" in " ".join(told(far, 81))
    assert "The camera path holds 9 poses: the video has 12 frames, not 81." in told(example[:9], 81)
    assert "Frames come in chunks of 12 if a video continues: the video has 24 frames, not 29." in told(example, 29)
    assert "The first 24 of the camera path's 81 poses are used" in " ".join(told(example, 24))
    assert "the video has 84 frames, not 81" in " ".join(told(example, 81))
    assert "frames, not" not in " ".join(told(example, 24))


def test_inspect_describes_a_causal_models_own_folder_with_another_window(toy_package, capsys):
    command = ["inspect", str(toy_package / "lingbot_world_fast"), "--window", "12", "--sink", "3"]
    assert main(command) == 0
    report = capsys.readouterr().out
    assert "keys and values of 12 latent frames in 8 bits on the GPU" in report
    for part in ("text encoder: umt5", "VAE: Wan 2.1", "VAE decode", "\ntext "):
        assert part in report
    assert main([*command[:-1], "12"]) == 2
    assert "--window 12 and --sink 12: a window holds its sink" in capsys.readouterr().err


def test_inspect_describes_a_folder_that_holds_a_causal_model(toy_package, tmp_path, capsys):
    shutil.copytree(toy_package / "lingbot_world_fast", tmp_path / "lingbot_world_fast")
    shutil.copy(toy_package / "Wan2.1_VAE.pth", tmp_path)
    assert main(["inspect", str(tmp_path)]) == 0
    report = capsys.readouterr().out
    assert "LingBot-World Fast (Apache-2.0): LingBot-World causal model" in report
    assert "keys and values of 21 latent frames in 8 bits on the GPU" in report
    assert "text_encoder: missing" in report
    assert "camera cache and decoded weights, used where there is room" in report
    assert "VAE decode" in report
    chunks = next(line for line in report.splitlines() if line.startswith("chunks, keys and values"))
    assert float(chunks.split()[-2]) < 1.2  # of a VAE of width 8; one of 96 takes 2.5 GB
