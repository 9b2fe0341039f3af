"""What ends a causal run early: interrupts, signals and memory that runs out. What is done or queued stays."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest
import torch
from lingbot_world.errors import InputError
from lingbot_world.headless import preparation, rollout, stages
from lingbot_world.headless import run as run_module
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.files.video import FrameWriter, _PngFiles
from lingbot_world.headless.plan import make_plan
from lingbot_world.headless.run import run
from lingbot_world.model.dit import LingBotWorldModel
from lingbot_world.pipeline import World
from lingbot_world.pipeline.delivery import HostCopy
from lingbot_world.pipeline.rollout_memory import RolloutMemory
from lingbot_world.pipeline.state import WorldState, load_state
from rollout_run_cases import length_of, words_of

pytestmark = pytest.mark.usefixtures("one_thread")


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

    monkeypatch.setattr(preparation, "_plan_parallel", lambda *_: (RolloutMemory(), True))
    monkeypatch.setattr(stages, "load_expert", load_expert)
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

    monkeypatch.setattr(preparation, "_plan_parallel", lambda *_: (RolloutMemory(), True))
    monkeypatch.setattr(stages, "load_expert", load_expert)
    plan = make_plan(causal())
    gc.disable()
    try:
        with pytest.raises(InputError):
            run(plan)
        assert halves[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("room", "part", "stage"),
    [(stages, "load_expert", "load causal model"), (preparation, "encode_first_frame", "VAE encode")],
)
def test_a_thread_that_runs_out_of_memory_is_told_with_its_stage(causal, monkeypatch, room, part, stage):
    def no_memory(*_arguments, **_settings):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(preparation, "_plan_parallel", lambda *_: (RolloutMemory(), True))
    monkeypatch.setattr(room, part, no_memory)
    with pytest.raises(InputError, match=f"ran out in stage '{stage}'"):
        run(make_plan(causal()))


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """What happens in a run whose chunks are there only after a wait: the forwards, the waits, the frames written."""
    happened, of, write = [], HostCopy.of, FrameWriter.write
    compute = LingBotWorldModel.forward

    def forward(model, *arguments):
        happened.append("forward")
        return compute(model, *arguments)

    def write_frames(writer, frames):
        happened.append(len(frames))
        write(writer, frames)

    monkeypatch.setattr(LingBotWorldModel, "forward", forward)
    monkeypatch.setattr(FrameWriter, "write", write_frames)

    def queue(_cls, latent, *_devices):
        return of(latent)._replace(wait=lambda: happened.append("wait"), from_gpu=True)

    monkeypatch.setattr(HostCopy, "of", classmethod(queue))
    return happened


def test_a_gpu_has_the_next_forward_before_python_waits_for_frames(causal, as_on_a_gpu):
    run(make_plan(causal(schedule=None)))
    chunk = ["forward", "wait", 9, *["forward"] * 4]
    assert as_on_a_gpu == [*["forward"] * 4, *chunk, "wait", 12]


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


def test_a_chunk_that_is_queued_when_the_run_is_interrupted_is_written_too(causal, as_on_a_gpu, interrupted, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(make_plan(causal(output=tmp_path / "cut.mp4", save_state=tmp_path / "cut.state")))
    assert length_of(tmp_path / "cut.mp4") == 9
    assert torch.equal(load_state(tmp_path / "cut.state").latent, interrupted[0])


@pytest.mark.parametrize("wait", [1, 2])
def test_an_interrupt_while_a_chunk_is_waited_for_loses_nothing(causal, as_on_a_gpu, tmp_path, monkeypatch, wait):
    """A wait for a GPU ends before Python sees the interrupt. The second wait is for the last chunk."""
    of, waits = HostCopy.of, []

    def wait_for_gpu():
        waits.append(1)
        if len(waits) == wait:
            raise KeyboardInterrupt

    monkeypatch.setattr(
        HostCopy, "of", classmethod(lambda _cls, latent, *_: of(latent)._replace(wait=wait_for_gpu, from_gpu=True))
    )
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


def test_a_full_disk_leaves_a_state_of_the_frames_that_are_written(causal, tmp_path, monkeypatch, capsys):
    """The run is chunks ahead when it hears of it. What goes on from the state leaves no gap."""
    write, given = _PngFiles.write, []

    def full(files, frames):
        given.append(len(frames))
        if len(given) == 2:
            raise OSError(28, "No space left on device")
        write(files, frames)

    monkeypatch.setattr(_PngFiles, "write", full)
    pictures, state = tmp_path / "pictures", tmp_path / "cut.state"
    assert main(words_of(causal(), frame_num=57, output=pictures, save_state=state)) == 2
    assert len(list(pictures.iterdir())) == load_state(state).frames == 9
    first = pictures / "frame_00000.png"
    problem = f"lingbot-world: {pictures}: No space left on device; make room, or write elsewhere"
    assert capsys.readouterr().err.endswith(f"\n{problem}; finished files stay: {first}, {state}\n")


def test_an_interrupted_command_leaves_a_playable_video_and_the_state_of_what_is_done(
    causal, interrupted, tmp_path, capsys
):
    video, state = tmp_path / "cut.mp4", tmp_path / "cut.state"
    assert main(words_of(causal(), output=video, save_state=state)) == 130
    assert length_of(video) == 9
    assert torch.equal(load_state(state).latent, interrupted[0])
    assert not list(tmp_path.glob(".lingbot-*"))
    assert capsys.readouterr().err.endswith(f"interrupted; finished files stay: {video}, {state}\n")


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
    monkeypatch.setattr(rollout, "_finish_or_log", interrupted(rollout._finish_or_log))
    monkeypatch.setattr(FrameWriter, "__exit__", interrupted(FrameWriter.__exit__))
    monkeypatch.setattr(WorldState, "save", interrupted(WorldState.save))
    video, state = tmp_path / "cut.mp4", tmp_path / "cut.state"
    with pytest.raises(KeyboardInterrupt):
        run(make_plan(causal(output=video, save_state=state)))
    assert length_of(video) == 9
    assert torch.equal(load_state(state).latent, done[0])


def test_a_command_that_is_interrupted_before_the_first_chunk_leaves_nothing_and_says_so(
    causal, tmp_path, capsys, monkeypatch
):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(World, "chunk", interrupted)
    assert main(words_of(causal(), output=tmp_path / "cut.mp4", save_state=tmp_path / "cut.state")) == 130
    assert capsys.readouterr().err.endswith("interrupted; nothing was written\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.skipif(sys.platform == "win32", reason="has no such signals")
@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
def test_what_ends_the_process_politely_leaves_what_ctrl_c_leaves(causal, tmp_path, number):
    video, state = tmp_path / "cut.mp4", tmp_path / "cut.state"
    words = words_of(causal(), frame_num=1209, window=6, output=video, save_state=state)
    command, one_thread = [sys.executable, "-m", "lingbot_world", *words], {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=one_thread) as process:
        shown = ""
        while not re.search(r" (2[1-9]|[3-9]\d|\d{3,4})/1209", shown) and (letter := process.stderr.read(1)):
            shown += letter
        process.send_signal(getattr(signal, number))
        _, rest = process.communicate(timeout=300)
    assert process.returncode == 128 + getattr(signal, number), shown + rest
    assert rest.endswith(f"interrupted; finished files stay: {video}, {state}\n")
    assert 21 <= length_of(video) == 4 * load_state(state).latent.shape[2] - 3 < 1209
    assert {file.name for file in tmp_path.iterdir()} == {"cut.mp4", "cut.state"}
