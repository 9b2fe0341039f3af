"""`generate` with a causal model: chunks written as they come, worlds that go on, and what is refused."""

import gc
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import pytest
import torch
from lingbot_world.camera.path import lens_from_fov
from lingbot_world.errors import CameraError, CheckpointError, InputError, LingBotError
from lingbot_world.headless import preparation, rollout
from lingbot_world.headless import run as run_module
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.options import GenerateOptions, lora_of
from lingbot_world.headless.plan import make_plan
from lingbot_world.headless.processes import ALONE
from lingbot_world.headless.rollout_memory import RolloutMemory, choose_rollout_memory, estimate_rollout
from lingbot_world.headless.run import run
from lingbot_world.headless.video import FrameWriter
from lingbot_world.loaders import open_checkpoint
from lingbot_world.loaders.checkpoint import Checkpoint
from lingbot_world.loaders.offload import weight_bytes
from lingbot_world.loaders.tensors import TensorEntry
from lingbot_world.model.config import ModelConfig
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.model.kv_cache import KeyValuePlace
from lingbot_world.model.memory import decoded_bytes
from lingbot_world.options import LoraFile
from lingbot_world.pipeline import World
from lingbot_world.pipeline.geometry import Geometry
from lingbot_world.pipeline.state import WorldState, load_state
from lingbot_world.pipeline.two_experts import ParallelGroups
from lingbot_world.vae import VideoDecoder, decode_latent, load_vae
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.usefixtures("one_thread")


def small_options(package, folder, **changes):
    """GenerateOptions of a small run of the toy's causal model, two steps a chunk; keywords replace some."""
    options = {
        "ckpt_dir": package / "lingbot_world_fast",
        "image": package / "example/image.png",
        "prompt": "a castle",
        "action_path": package / "example",
        "width": 48,
        "height": 32,
        "frame_num": 21,
        "schedule": "0,500",
        "seed": 1,
        "device": "cpu",
        "output": folder / "video" / "*.png",
    }
    return GenerateOptions(**options | changes)


@pytest.fixture
def causal(toy_package, tmp_path):
    """`causal(...)`: the options of a run of the test's own."""
    return partial(small_options, toy_package, tmp_path)


def frames_of(folder) -> np.ndarray:
    return np.stack([np.asarray(Image.open(file)) for file in sorted(folder.glob("*.png"))])


def test_the_video_has_the_frames_of_its_chunks(causal, tmp_path):
    result = run(make_plan(causal()))
    assert frames_of(tmp_path / "video").shape == (21, 32, 48, 3)
    assert [stage.name for stage in result.stages] == ["text", "VAE encode", "load causal model", "chunks"]


def test_what_a_run_needs_may_be_made_while_the_text_encoder_works(causal, tmp_path, monkeypatch):
    """On a GPU with room for all of it; here the answer of such a GPU is given."""
    run(make_plan(causal()))
    want, encoding, loaded = frames_of(tmp_path / "video"), run_module.encode_prompts, threading.Event()
    load = preparation.load_expert

    def load_expert(*arguments, **settings):
        model = load(*arguments, **settings)
        loaded.set()
        return model

    def encode_prompts(*arguments):
        assert loaded.wait(60)  # by another thread
        return encoding(*arguments)

    monkeypatch.setattr(preparation, "_with_room_for_all", lambda *_: RolloutMemory())
    monkeypatch.setattr(preparation, "load_expert", load_expert)
    monkeypatch.setattr(run_module, "encode_prompts", encode_prompts)
    result = run(make_plan(causal(output=tmp_path / "again" / "*.png")))
    assert [stage.name for stage in result.stages] == ["VAE encode", "text", "load causal model", "chunks"]
    assert np.array_equal(frames_of(tmp_path / "again"), want)


@pytest.mark.parametrize("ending", [KeyboardInterrupt, InputError])
def test_what_ends_a_run_early_does_not_wait_for_the_load(causal, monkeypatch, ending):
    started, turns = threading.Event(), []

    def load_expert(*_arguments, progress, **_settings):
        started.set()
        while len(turns) < 1000:  # ten seconds
            turns.append(time.sleep(0.01))
            progress(1, 2)

    def encode_prompts(*_arguments):
        started.wait(60)
        raise ending("now")

    monkeypatch.setattr(preparation, "_with_room_for_all", lambda *_: RolloutMemory())
    monkeypatch.setattr(preparation, "load_expert", load_expert)
    monkeypatch.setattr(run_module, "encode_prompts", encode_prompts)
    with pytest.raises(ending):
        run(make_plan(causal()))
    assert len(turns) < 1000


def test_a_model_that_could_not_be_loaded_is_gone_when_that_was_told(causal, monkeypatch):
    class Half:
        """Half of a model."""

    halves = []

    def load_expert(*_arguments, **_settings):
        half = Half()
        halves.append(weakref.ref(half))
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(preparation, "_with_room_for_all", lambda *_: RolloutMemory())
    monkeypatch.setattr(preparation, "load_expert", load_expert)
    plan = make_plan(causal())
    gc.disable()
    try:
        with pytest.raises(InputError):
            run(plan)
        assert halves[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("part", "stage"), [("load_expert", "load causal model"), ("encode_first_frame", "VAE encode")]
)
def test_a_thread_that_runs_out_of_memory_is_told_with_its_stage(causal, monkeypatch, part, stage):
    def no_memory(*_arguments, **_settings):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(preparation, "_with_room_for_all", lambda *_: RolloutMemory())
    monkeypatch.setattr(preparation, part, no_memory)
    with pytest.raises(InputError, match=f"ran out in stage '{stage}'"):
        run(make_plan(causal()))


@pytest.fixture
def interrupted(monkeypatch):
    """The second chunk of a run is interrupted. The latent of the first one, in a list."""
    chunk, done = World.chunk, []

    def make(*arguments):
        if done:
            raise KeyboardInterrupt
        done.append(chunk(*arguments))
        return done[0]

    monkeypatch.setattr(World, "chunk", make)
    return done


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """What happens in a run whose chunks are there only after a wait: the forwards, the waits, the frames written."""
    happened, decoded, write = [], rollout._Run._decoded, FrameWriter.write
    compute = LingBotWorldModel.forward

    def forward(model, *arguments):
        happened.append("forward")
        return compute(model, *arguments)

    def write_frames(writer, frames):
        happened.append(len(frames))
        write(writer, frames)

    monkeypatch.setattr(LingBotWorldModel, "forward", forward)
    monkeypatch.setattr(FrameWriter, "write", write_frames)
    monkeypatch.setattr(rollout._Run, "_decoded", lambda run, latent: decoded(run, latent)._replace(
        wait=lambda: happened.append("wait")))  # fmt: skip
    return happened


def test_a_gpu_has_the_next_forward_before_python_waits_for_frames(causal, as_on_a_gpu):
    run(make_plan(causal(schedule=None)))
    chunk = ["forward", "wait", 9, *["forward"] * 4]
    assert as_on_a_gpu == [*["forward"] * 4, *chunk, "wait", 12]


def test_a_chunk_that_is_queued_when_the_run_is_interrupted_is_written_too(causal, as_on_a_gpu, interrupted, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(make_plan(causal(output=tmp_path / "cut.mp4", save_state=tmp_path / "cut.state")))
    assert length_of(tmp_path / "cut.mp4") == 9
    assert torch.equal(load_state(tmp_path / "cut.state").latent, interrupted[0])


@pytest.mark.parametrize("wait", [1, 2])
def test_an_interrupt_while_a_chunk_is_waited_for_loses_nothing(causal, as_on_a_gpu, tmp_path, monkeypatch, wait):
    """A wait for a GPU ends before Python sees the interrupt. The second wait is for the last chunk."""
    decoded, waits = rollout._Run._decoded, []

    def wait_for_gpu():
        waits.append(1)
        if len(waits) == wait:
            raise KeyboardInterrupt

    monkeypatch.setattr(rollout._Run, "_decoded", lambda run, latent: decoded(run, latent)._replace(wait=wait_for_gpu))
    with pytest.raises(KeyboardInterrupt):
        run(make_plan(causal(output=tmp_path / "cut.mp4", save_state=tmp_path / "cut.state")))
    assert length_of(tmp_path / "cut.mp4") == (9, 21)[wait - 1]
    assert load_state(tmp_path / "cut.state").latent.shape[2] == 3 * wait


def test_what_ends_a_run_is_told_though_the_chunk_before_cannot_be_written(causal, as_on_a_gpu, monkeypatch, caplog):
    chunk, done = World.chunk, []

    def short(*arguments):
        if done:
            raise torch.OutOfMemoryError("CUDA out of memory")
        done.append(1)
        return chunk(*arguments)

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(World, "chunk", short)
    monkeypatch.setattr(FrameWriter, "write", full)
    with pytest.raises(InputError, match="the GPU's memory ran out in stage 'chunks'"):
        run(make_plan(causal()))
    assert "could not be written: No space left" in caplog.text


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


def test_an_interrupt_leaves_a_playable_video_and_the_state_of_what_is_done(causal, interrupted, tmp_path):
    video, state = tmp_path / "cut.mp4", tmp_path / "cut.state"
    plan = make_plan(causal(output=video, save_state=state))
    with pytest.raises(KeyboardInterrupt):
        run(plan)
    assert length_of(video) == 9
    assert torch.equal(load_state(state).latent, interrupted[0])
    assert not list(tmp_path.glob(".lingbot-*"))


def test_a_state_that_would_replace_the_video_is_refused_before_the_run(causal, tmp_path):
    video = tmp_path / "video.mp4"
    with pytest.raises(InputError, match=f"`save_state` {video} is the video's file"):
        make_plan(causal(output=video, save_state=video))
    make_plan(causal(output=video, save_state=tmp_path / "new folder/x.state"))
    assert not (tmp_path / "new folder").exists()


@pytest.mark.usefixtures("interrupted")
def test_an_interrupted_command_does_not_say_that_nothing_was_written(causal, tmp_path, capsys):
    options, video = causal(), tmp_path / "cut.mp4"
    words = ["--ckpt_dir", options.ckpt_dir, "--image", options.image, "--prompt", "a castle", "--output", video,
             "--width", 64, "--height", 48, "--frame_num", 21, "--device", "cpu"]  # fmt: skip
    assert main(["generate", *map(str, words)]) == 130
    assert length_of(video) == 9
    assert capsys.readouterr().err.endswith("interrupted; the chunks that were done stay\n")


@pytest.mark.usefixtures("usual_signals")
def test_interrupts_after_the_first_one_lose_nothing(causal, tmp_path, monkeypatch):
    """They come while the chunks that are done are written, while the video is closed and while the state is saved."""
    chunk, done = World.chunk, []

    def interrupted(function):
        def run_with_it(*arguments):
            signal.raise_signal(signal.SIGINT)
            return function(*arguments)

        return run_with_it

    def make(*arguments):
        if done:
            signal.raise_signal(signal.SIGINT)
        done.append(chunk(*arguments))
        return done[0]

    monkeypatch.setattr(World, "chunk", make)
    monkeypatch.setattr(rollout, "_but_log", interrupted(rollout._but_log))
    monkeypatch.setattr(FrameWriter, "__exit__", interrupted(FrameWriter.__exit__))
    monkeypatch.setattr(WorldState, "save", interrupted(WorldState.save))
    video, state = tmp_path / "cut.mp4", tmp_path / "cut.state"
    with pytest.raises(KeyboardInterrupt):
        run(make_plan(causal(output=video, save_state=state)))
    assert length_of(video) == 9
    assert torch.equal(load_state(state).latent, done[0])


def test_a_command_that_is_interrupted_before_the_first_chunk_says_so(causal, tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(World, "chunk", interrupted)
    assert main(words_of(causal(), output=tmp_path / "cut.mp4")) == 130
    assert capsys.readouterr().err.endswith("interrupted; nothing was written\n")


def words_of(options, **changes):
    """Arguments of the command for a small run."""
    given = {"ckpt_dir": options.ckpt_dir, "image": options.image, "prompt": "a castle", "width": 48, "height": 32,
             "frame_num": 21, "device": "cpu"} | changes  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    return ["generate", *(str(word) for name, value in given.items() for word in (f"--{name}", value))]


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.skipif(sys.platform == "win32", reason="has no such signals")
@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
def test_what_ends_the_process_politely_leaves_what_ctrl_c_leaves(causal, tmp_path, number):
    video, state = tmp_path / "cut.mp4", tmp_path / "cut.state"
    words = words_of(causal(), frame_num=1209, window=6, output=video, save_state=state)
    command, one_thread = [sys.executable, "-m", "lingbot_world", *words], {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=one_thread) as process:
        shown = ""
        while " 21/1209" not in shown and (letter := process.stderr.read(1)):
            shown += letter
        process.send_signal(getattr(signal, number))
        _, rest = process.communicate(timeout=300)
    assert process.returncode == 128 + getattr(signal, number), shown + rest
    assert rest.endswith("interrupted; the chunks that were done stay\n")
    assert 21 <= length_of(video) == 4 * load_state(state).latent.shape[2] - 3 < 1209
    assert {file.name for file in tmp_path.iterdir()} == {"cut.mp4", "cut.state"}


def test_nothing_done_leaves_nothing(causal, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(World, "chunk", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(make_plan(causal(output=tmp_path / "cut.mp4", save_state=tmp_path / "cut.state")))
    assert not list(tmp_path.iterdir())


def test_a_video_can_go_into_a_pipe(causal, monkeypatch):
    taken = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", type("Stdout", (), {"buffer": taken})())
    run(make_plan(causal(output="-", frame_num=9)))
    taken.seek(0)
    assert length_of(taken) == 9


def length_of(video) -> int:
    import av

    with av.open(video if isinstance(video, io.BytesIO) else str(video)) as container:
        return sum(1 for _ in container.decode(video=0))


@pytest.fixture
def second_release(toy_package, tmp_path):
    """The toy's causal model in a folder with the name of 2.0."""
    folder = tmp_path / "lingbot-world-v2-toy"
    shutil.copytree(toy_package / "lingbot_world_fast", folder / "model")
    for name in ("tokenizer", "models_t5_umt5-xxl-enc-bf16.pth", "Wan2.1_VAE.pth"):
        (folder / name).symlink_to(toy_package / name)
    return folder


def test_the_command_says_what_it_makes_and_under_which_licence(causal, second_release, toy_package, tmp_path, capsys):
    words = ["--ckpt_dir", second_release, "--image", toy_package / "example/image.png", "--prompt", "a castle",
             "--width", 64, "--height", 48, "--frame_num", 9, "--device", "cpu", "--output", tmp_path]  # fmt: skip
    code = main(["generate", *map(str, words)])
    said, wrong = capsys.readouterr()
    assert code == 0, wrong
    assert "LingBot-World 2.0 (CC BY-NC-SA 4.0, for non-commercial use)" in said
    assert "the camera stands still" in said
    assert "64x48, 9 frames, 1 chunks" in said


def test_releases_have_schedules_and_windows_of_their_own(causal, toy_package):
    plan = make_plan(causal(schedule=None))
    assert (plan.window, plan.sink, plan.schedule.timesteps[1], plan.held_frames) == (0, 0, 978, 6)
    plan = make_plan(causal(schedule="v2", window=9, sink=3, shift=5.0))
    assert (plan.window, plan.sink, plan.schedule.timesteps, plan.held_frames) == (9, 3, (999, 937, 833, 624), 6)
    assert make_plan(causal(schedule="0,500")).schedule.timesteps == (999, 908)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"guide_scale": 3.0}, "`guide_scale` does not belong here: a causal model takes a few unguided steps"),
        ({"boundary": 0.9}, "`boundary` does not belong here"),
        ({"solver": "dpmpp"}, "`solver` does not belong here"),
        ({"negative": "blur"}, "`negative` does not belong here"),
        ({"window": 4, "sink": 3}, "`window` 4 and `sink` 3: a window holds its sink and a chunk of 3"),
        ({"schedule": "fast"}, "`schedule` fast: expected v1, v2 or indices such as"),
        ({"schedule": "5,4"}, "expected one or more rising numbers"),
        ({"frame_num": 5}, "do not fill a chunk of 3 latent frames: at least 9 are needed"),
        ({"image": None}, "`image` is missing"),
        ({"continue_from": "nothing.state"}, "the state nothing.state does not exist"),
        ({"save_state": "/proc"}, "`save_state` /proc is a folder; name a file in it"),
        ({"save_state": "/proc/a/b.state"}, r"`save_state` /proc/a/b.state cannot be written: .* \(/proc\)"),
        ({"kv_cache": "disk"}, "`kv_cache` disk: expected one of auto, gpu, 8bit, host"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_makes_no_sense_for_a_causal_model_is_refused(changes, said, causal):
    with pytest.raises(LingBotError, match=said):
        make_plan(causal(**changes))


def test_the_base_model_refuses_what_belongs_to_causal_ones(causal, toy_package):
    with pytest.raises(InputError, match="`window` does not belong here: the base model makes a video as a whole"):
        make_plan(causal(ckpt_dir=toy_package, window=9))


def test_a_lora_acts_in_every_chunk_and_is_told(causal, toy_package, tmp_path):
    night = toy_lora(tmp_path / "night.safetensors", toy_package)
    run(make_plan(causal()))
    plain = frames_of(tmp_path / "video").astype(int)
    plan = make_plan(causal(lora=(LoraFile(night, 2.0),)))
    assert plan.notes[1] == "LoRA night.safetensors, strength 2"
    shutil.rmtree(tmp_path / "video")
    run(plan)
    gap = np.abs(frames_of(tmp_path / "video") - plain).mean((1, 2, 3))
    assert gap[:9].max() > 1
    assert gap[9:].max() > 1


def toy_lora(path, package):
    """A LoRA of rank 2 on the head of the toy's causal model, in a file."""
    shape = open_checkpoint(package / "lingbot_world_fast").shapes["head.head.weight"]
    random = torch.Generator().manual_seed(1)
    halves = torch.randn(2, shape[1], generator=random), torch.randn(shape[0], 2, generator=random)
    save_file({"head.head.lora_A.weight": halves[0] / shape[1] ** 0.5, "head.head.lora_B.weight": halves[1]}, path)
    return path


@pytest.mark.parametrize(("name", "said"), [
    ("high=night.safetensors", "night.safetensors is for the high-noise expert, and .* is one model by itself"),
    ("other.safetensors", "`lora` .*other.safetensors does not exist"), ("", "`lora` .* is a folder"),
    ("night.safetensors:nan", "its strength is nan, expected a finite number"),
])  # fmt: skip
def test_loras_that_do_not_belong_are_refused(causal, toy_package, tmp_path, name, said):
    toy_lora(tmp_path / "night.safetensors", toy_package)
    given = lora_of(name)
    with pytest.raises(InputError, match=said):
        make_plan(causal(lora=(replace(given, path=tmp_path / given.path),)))


def test_another_release_that_goes_on_with_a_video_is_told(causal, second_release, tmp_path):
    first, second = tmp_path / "first.state", tmp_path / "second.state"
    run(make_plan(causal(frame_num=9, save_state=first)))
    options = partial(causal, frame_num=9, continue_from=first, image=None, width=None, height=None)
    assert "was made by" not in " ".join(make_plan(options()).notes)
    plan = make_plan(options(ckpt_dir=second_release, save_state=second))
    assert plan.notes[-1] == "The video so far was made by LingBot-World Fast; LingBot-World 2.0 goes on."
    assert (plan.window, plan.sink) == (0, 0)
    run(plan)
    assert load_state(second).release == "LingBot-World 2.0"


def test_what_the_user_should_know_of_a_path_is_told(causal, tmp_path):
    """The example's path has 81 poses."""
    state = tmp_path / "a.state"
    first = make_plan(causal(frame_num=9, save_state=state))
    assert first.notes[-1].startswith("The first 9 of the camera path's 81 poses are used; a run that goes on begins")
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
    assert f"{tmp_path / 'path'} holds 9 poses: the video has 12 frames, not 81." in told(example[:9], 81)
    assert "Frames come in chunks of 12 where a video goes on: the video has 24 frames, not 29." in told(example, 29)
    assert "The first 24 of the camera path's 81 poses are used" in " ".join(told(example, 24))
    assert "frames, not" not in " ".join(told(example, 81))


def test_a_path_shorter_than_a_chunk_is_named_with_its_poses(causal, tmp_path):
    folder = pose_folder(tmp_path / "short", np.load(causal().action_path / "poses.npy")[:8])
    with pytest.raises(CameraError, match=f"`action_path` {folder}: 8 poses; a causal model needs at least 9, a chunk"):
        make_plan(causal(action_path=folder, frame_num=81))


def pose_folder(folder, poses):
    folder.mkdir(exist_ok=True)
    np.save(folder / "poses.npy", poses)
    np.save(folder / "intrinsics.npy", lens_from_fov()[None])
    return folder


def test_a_world_goes_on_with_a_window_that_fits(causal, tmp_path):
    """What was made without a window may not fit any more."""
    first, second = tmp_path / "first.state", tmp_path / "second.state"
    run(make_plan(causal(save_state=first)))
    plan = make_plan(causal(continue_from=first, save_state=second, width=None, height=None, window=6, sink=3))
    assert plan.notes[-1] == "The video so far was made with window 0 and sink 0; it goes on with 6 and 3."
    assert (plan.held_frames, plan.held_sink) == (6, 3)
    run(plan)
    state = load_state(second)
    assert (state.window, state.sink) == (6, 3)
    assert torch.equal(state.latent[:, :, :6], load_state(first).latent)
    plan = make_plan(causal(continue_from=second, width=None, height=None))
    assert (plan.window, plan.sink) == (6, 3)


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


@pytest.fixture(scope="module")
def full_size(toy_package, tmp_path_factory):
    """A plan of a full-size model at 480x832 with a full window, whose weights are not there. It cannot be changed."""
    plan = make_plan(small_options(toy_package, tmp_path_factory.mktemp("full size")))
    config = ModelConfig(5120, 13824, 40, 40, 256, 4096, causal=True)
    checkpoint = FullSize(plan.checkpoint.path, config, {}, {"all": None}, config.parameter_shapes())
    return replace(plan, checkpoint=checkpoint, device=torch.device("cuda"), dtype=torch.bfloat16, window=18, sink=6,
                   geometry=Geometry(480, 832, 321), vae={"decoder.head.0.gamma": torch.empty(96)})  # fmt: skip


class FullSize(Checkpoint):
    """NF4 weights told by their shapes: half a byte and a hundred-and-twentieth a value."""

    @property
    def nbytes(self) -> int:
        return int(sum(math.prod(shape) for shape in self.shapes.values()) * 0.5164)

    @cached_property
    def _by_name(self):
        lengths = {name: (int(math.prod(shape) * 0.5164),) for name, shape in self.shapes.items()}
        return {name: TensorEntry(name, self.path, torch.uint8, length, torch.empty(0))
                for name, length in lengths.items()}  # fmt: skip

    def entries(self, names):
        return [self._by_name[name] for name in names]


@pytest.mark.parametrize(
    ("gigabytes", "host", "mode", "chosen"),
    [
        (80, 64, "auto", {}),
        (31, 64, "auto", {"eight_bit": True}),
        (23.5, 64, "auto", {"on_host": True, "device_blocks": 2}),
        (23.5, 24, "auto", {"eight_bit": True, "on_host": True, "device_blocks": 7}),
        (23.5, 64, "8bit", {"eight_bit": True, "on_host": True, "device_blocks": 7}),
        (15.5, 64, "host", {"on_host": True, "vae_tiling": True}),
        (7.5, 64, "auto", {"on_host": True, "device_blocks": 5, "vae_tiling": True, "streamed": True}),
        (7.5, 20, "auto",
         {"eight_bit": True, "on_host": True, "device_blocks": 13, "vae_tiling": True, "streamed": True}),
        (80, 64, "auto", {"half": True}),
        (18.5, 64, "auto", {"half": True, "on_host": True}),
        (18, 8, "auto", {"half": True, "eight_bit": True, "parked": True, "streamed": 14}),
        (20, 8, "auto", {"half": True, "eight_bit": True, "parked": True, "streamed": 23}),
        (15, 64, "auto", {"half": True, "on_host": True, "parked": True}),
        (14.9, 64, "host", {"half": True, "on_host": True, "parked": True}),
        (7.5, 64, "host", {"half": True, "on_host": True, "parked": True, "streamed": 7}),
        (7.5, 64, "auto", {"half": True, "on_host": True, "device_blocks": 2, "parked": True, "streamed": True}),
        (7.5, 30, "auto",
         {"half": True, "eight_bit": True, "on_host": True, "device_blocks": 9, "parked": True, "streamed": True}),
        (7.5, 64, "8bit",
         {"half": True, "eight_bit": True, "on_host": True, "device_blocks": 9, "parked": True, "streamed": True}),
        (12, 64, "8bit",
         {"half": True, "eight_bit": True, "on_host": True, "device_blocks": 27, "parked": True, "streamed": True}),
        (11.5, 64, "auto", {"half": True, "on_host": True, "device_blocks": 9, "parked": True, "streamed": True}),
        (4.5, 64, "host", {"half": True, "on_host": True, "parked": True, "vae_tiling": True, "streamed": 2}),
    ],
)
def test_memory_is_chosen_by_what_is_free(gigabytes, host, mode, chosen, full_size):
    half = "half" in chosen
    plan = replace(full_size, options=replace(full_size.options, kv_cache=mode, vae_dtype="fp16" if half else "fp32"))
    memory = choose_rollout_memory(plan, int(gigabytes * 1e9), int(host * 1e9))
    found = {**memory.place._asdict(), "vae_tiling": memory.vae_tiling, "half": half,
             "streamed": memory.resident_blocks or memory.resident_blocks is not None,
             "parked": half and memory.park_decoder}  # fmt: skip
    assert {name: value for name, value in found.items() if value} == chosen
    stage, pinned = estimate_rollout(
        plan.checkpoint.config, plan.geometry, plan.dtype, memory,
        weights=weight_bytes(plan.checkpoint, memory.resident_blocks), held_frames=plan.held_frames, vae_width=96,
        vae_half=half,
    )  # fmt: skip
    decoded = memory.decoded_blocks * decoded_bytes(plan.checkpoint.config, plan.dtype)
    assert stage.total + memory.camera_cache_bytes + decoded <= gigabytes * 1e9
    assert pinned <= host * 1e9


@pytest.mark.parametrize(("free", "host", "mode", "place", "blocks"), [
    (6, 64, "auto", {"on_host": True, "device_blocks": 20}, 0),
    (6, 10, "auto", {"on_host": True, "device_blocks": 20}, 0),
    (8, 64, "auto", {"on_host": True, "device_blocks": 33}, 0), (12, 64, "auto", {}, 14),
    (8, 64, "8bit", {"eight_bit": True}, 10), (11.5, 64, "host", {"on_host": True}, 35),
    (80, 64, "host", {"on_host": True}, None),
])  # fmt: skip
def test_a_small_video_keeps_exact_keys_and_values_where_blocks_stream(free, host, mode, place, blocks, full_size):
    options = replace(full_size.options, kv_cache=mode, vae_dtype="fp16")
    plan = replace(full_size, options=options, geometry=Geometry(240, 416, 321))
    memory = choose_rollout_memory(plan, int(free * 1e9), int(host * 1e9))
    assert (memory.place, memory.resident_blocks) == (KeyValuePlace(**place), blocks)


def test_a_camera_cache_that_is_asked_for_comes_before_keys_and_values(full_size):
    options = replace(full_size.options, kv_cache="8bit", vae_dtype="fp16")
    by_itself, asked = (choose_rollout_memory(replace(full_size, options=replace(options, camera_cache=cache)),
                                              int(12e9), int(64e9)) for cache in ("auto", "gpu"))  # fmt: skip
    assert by_itself.camera_cache_bytes < 2.5e8 < 4.2e9 < asked.camera_cache_bytes
    assert by_itself.place.device_blocks == 27 > asked.place.device_blocks == 10


@pytest.mark.parametrize(
    ("processes", "free", "mode", "recorded"),
    [(4, 80, "auto", 1), (2, 80, "auto", 0), (1, 80, "auto", 0), (4, 20, "auto", 0), (4, 80, "8bit", 0)],
)
def test_kernels_are_recorded_where_python_is_slower_and_everything_is_on_the_gpu(
    processes, free, mode, recorded, full_size
):
    plan = replace(full_size, options=replace(full_size.options, kv_cache=mode))
    assert choose_rollout_memory(plan, int(free * 1e9), int(640e9), processes).graphs == bool(recorded)


@pytest.mark.parametrize(
    ("free", "arithmetic", "blocks"),
    [(80, "auto", 40), (60, "auto", 25), (60, "fp8", 40), (45, "auto", 0), (25, "auto", 0)],
)
def test_decoded_weights_stay_where_there_is_room(free, arithmetic, blocks, full_size):
    plan = replace(full_size, options=replace(full_size.options, arithmetic=arithmetic))
    memory = choose_rollout_memory(plan, int(free * 1e9), int(640e9))
    assert memory.decoded_blocks == blocks
    plain = replace(plan, checkpoint=replace(plan.checkpoint, four_bit={}))
    assert choose_rollout_memory(plain, int(free * 1e9), int(640e9)).decoded_blocks == 0


@pytest.mark.parametrize(("free", "kept"), [(80, True), (30, True), (23.5, True), (14, False), (7.5, False)])
def test_a_model_that_fits_beside_the_text_encoder_is_loaded_meanwhile(free, kept, full_size):
    found = preparation._with_room_for_all(full_size, int(free * 1e9), int(64e9), ALONE, ParallelGroups())
    assert (found is not None) == kept
    shared = ParallelGroups(weights=object())
    assert preparation._with_room_for_all(full_size, int(free * 1e9), int(64e9), ALONE, shared) is None


def test_too_little_memory_is_said_before_anything_is_loaded(full_size):
    for mode, last in (("auto", "a smaller video$"), ("8bit", "or `kv_cache` auto$")):
        plan = replace(full_size, options=replace(full_size.options, kv_cache=mode))
        with pytest.raises(InputError, match=f"too little for keys and values of 18 latent frames .*{last}"):
            choose_rollout_memory(plan, int(2e9), int(64e9))
    assert choose_rollout_memory(replace(full_size, device=torch.device("cpu")), 0) == RolloutMemory()


def test_a_video_without_a_window_is_refused_with_one_that_fits(full_size):
    plan = replace(full_size, window=0, sink=0, geometry=Geometry(480, 832, 1929))
    with pytest.raises(InputError, match="keys and values of 483 latent frames .* use `window` 18 and `sink` 6, since"):
        choose_rollout_memory(plan, int(24e9), int(64e9))


def test_too_little_memory_is_said_before_the_text_encoder_works(full_size, monkeypatch):
    monkeypatch.setattr(preparation, "free_memory", lambda _device: int(2e9))
    monkeypatch.setattr(preparation, "available_host_memory", lambda: int(64e9))
    together = ParallelGroups(None, None, None)
    with pytest.raises(InputError, match="too little for keys and values"):
        preparation.prepare(full_size, pytest.fail, None, ALONE, together)


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
