"""The record of stages, the estimates, and runs with more or less in memory."""

import threading
import time

import numpy as np
import pytest
import torch
from lingbot_world.headless import run as runs
from lingbot_world.headless import stages
from lingbot_world.headless.options import GenerateOptions
from lingbot_world.headless.plan import make_plan
from lingbot_world.headless.process.profile import Stage, StageRecorder, table
from lingbot_world.loaders import open_checkpoint
from lingbot_world.options import Precision
from lingbot_world.pipeline.geometry import explicit_geometry
from lingbot_world.pipeline.memory import estimate_sampling, free_memory
from PIL import Image

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("one_thread")


def options(toy_package, tmp_path, **changes):
    values = {"action_path": toy_package / "example", "width": 48, "height": 32, "frame_num": 5, "device": "cpu"}
    values |= {"output": tmp_path / "video.mp4"} | changes
    return GenerateOptions(ckpt_dir=toy_package, image=toy_package / "example/image.png", prompt="a castle", **values)


def test_a_stage_is_measured_from_its_beginning_to_the_next():
    before = time.perf_counter()
    with StageRecorder(CPU) as stages:
        stages.begin("short")
        time.sleep(0.05)
        stages.begin("long")
        time.sleep(0.1)
        stages.begin("after")
    elapsed = time.perf_counter() - before
    short, long, after = stages.stages
    assert [stage.name for stage in stages.stages] == ["short", "long", "after"]
    assert short.seconds >= 0.05
    assert long.seconds >= 0.1
    assert short.seconds + long.seconds + after.seconds <= elapsed
    assert short.gpu_peak is None


def test_the_table_sums_seconds_and_takes_the_highest_peak():
    stages = [Stage("text", 1.25, None), Stage("steps", 30.0, 13_500_000_000), Stage("write", 2.0, 10**9)]
    heading, *rows, total = table(stages).splitlines()
    assert heading.split() == ["stage", "seconds", "peak", "GPU", "GB"]
    assert [row.split() for row in rows] == [["text", "1.2", "-"], ["steps", "30.0", "13.50"], ["write", "2.0", "1.00"]]
    assert total.split() == ["all", "33.2", "13.50"]
    assert len({len(line) for line in (heading, *rows, total)}) == 1


def test_an_exception_ends_the_stage_and_its_display():
    ended = []

    class Display:
        def __init__(self, name, unit):
            self.name = name

        def __enter__(self):
            return lambda done, total: None

        def __exit__(self, *exception):
            ended.append(self.name)

    def interrupted():
        with stages:
            stages.begin("first")
            stages.begin("second")
            raise KeyboardInterrupt

    stages = StageRecorder(CPU, Display)
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert ended == ["first", "second"]
    assert stages.running == "second"


@pytest.mark.parametrize(
    ("share", "known", "free"), [(1.0, True, 6e9 + 0.5e9), (0.5, True, 5e9 - 2e9), (0.5, False, 6e9 + 0.5e9)]
)
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_free_memory_is_what_driver_and_torchs_own_limit_leave(device, share, known, free, monkeypatch):
    """Of 10 GB, 6 are free, torch holds 2.5 and uses 2 of them."""
    told = {
        "current_device": lambda: 0,
        "mem_get_info": lambda index: (int(6e9), int(10e9)),
        "memory_reserved": lambda index: int(2.5e9),
        "memory_allocated": lambda index: int(2e9),
        "get_per_process_memory_fraction": lambda index: {0: share}[index],
    }
    for name, answer in told.items():
        monkeypatch.setattr(torch.cuda, name, answer, raising=False)
    if not known:
        monkeypatch.delattr(torch.cuda, "get_per_process_memory_fraction")
    assert free_memory(torch.device(device)) == free


def test_both_experts_need_their_weights_more(toy_package):
    high, low = (open_checkpoint(toy_package / f"{name}_noise_model_bnb_nf4") for name in ("high", "low"))
    geometry, bf16 = explicit_geometry(96, 64, 9), Precision(torch.bfloat16)
    one, two = (estimate_sampling(pair, geometry, bf16, camera=True) for pair in ([high], [high, low]))
    assert two.weights == high.nbytes + low.nbytes
    assert two.total - one.total == low.nbytes
    assert estimate_sampling([high], geometry, bf16, camera=False).work < one.work


def test_every_residency_gives_the_same_video(toy_package, tmp_path):
    def frames_and_stages(residency):
        target = tmp_path / residency
        result = runs.run(
            make_plan(options(toy_package, target, residency=residency, sampling_steps=2, seed=3, output=target))
        )
        names = [stage.name for stage in result.stages if "expert" in stage.name or "steps" in stage.name]
        return [np.array(Image.open(file)) for file in sorted(target.iterdir())], names

    frames, one = frames_and_stages("one")
    assert one == ["load high-noise expert", "high-noise steps", "load low-noise expert", "low-noise steps"]
    again, both = frames_and_stages("both")
    assert both == ["load high-noise expert", "load low-noise expert", "high-noise steps", "low-noise steps"]
    threads = threading.active_count()
    streamed, names = frames_and_stages("stream")
    assert names == one
    assert threading.active_count() == threads
    assert len(frames) == 5
    assert np.array_equal(frames, again)
    assert np.array_equal(frames, streamed)


def test_a_gpu_that_runs_out_says_which_knob_to_turn(toy_package, tmp_path, monkeypatch):
    def exhausted(*arguments, **keywords):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")

    plan = make_plan(options(toy_package, tmp_path, sampling_steps=1))
    monkeypatch.setattr(stages, "load_expert", exhausted)
    with pytest.raises(
        runs.InputError, match="'load high-noise expert'; try `residency` stream.*Tried to allocate 2 GiB"
    ):
        runs.run(plan)
    monkeypatch.setattr(stages, "load_vae", exhausted)
    with pytest.raises(runs.InputError, match="'VAE encode'; try `vae_tiling`"):
        runs.run(plan)
    assert list(tmp_path.iterdir()) == []


def test_a_vae_that_runs_out_of_memory_goes_on_tile_by_tile(toy_package, tmp_path, monkeypatch, caplog):
    whole = stages.decode_latent

    def short(vae, latent, progress):
        if not vae.use_tiling:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(vae, latent, progress)

    monkeypatch.setattr(stages, "decode_latent", short)
    plan = make_plan(options(toy_package, tmp_path, sampling_steps=1))
    assert runs.run(plan).path.exists()
    assert "VAE did not fit" in caplog.text


def test_a_number_too_large_for_fp16_has_the_video_decoded_in_fp32(toy_package, tmp_path, monkeypatch, caplog):
    whole, dtypes = stages.decode_latent, []

    def too_large(vae, latent, progress):
        dtypes.append(vae.dtype)
        if vae.dtype == torch.float16:
            raise OverflowError("too large")
        return whole(vae, latent, progress)

    monkeypatch.setattr(stages, "decode_latent", too_large)
    assert runs.run(make_plan(options(toy_package, tmp_path, sampling_steps=1, vae_dtype="fp16"))).path.exists()
    assert dtypes == [torch.float16, torch.float32]
    assert "decoded again, in fp32: too large" in caplog.text
