"""`lingbot-world batch`: the videos are those of `generate`; done jobs are skipped, failed ones passed over."""

import csv
import hashlib
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import model_cases
import numpy as np
import pytest
import torch
from lingbot_world.headless import stages
from lingbot_world.headless.command.cli import BAD_INPUT, main
from lingbot_world.headless.files.pictures import colour_frames
from lingbot_world.headless.many import batch, inputs
from lingbot_world.headless.many.jobs import read_jobs
from lingbot_world.headless.many.manifest import lock_batch
from lingbot_world.headless.many.model_cache import ModelCache
from lingbot_world.headless.options import GenerateOptions
from lingbot_world.loaders import open_checkpoint
from lingbot_world.model.dit import LingBotWorldModel
from PIL import Image, ImageOps
from safetensors.torch import save_file

SMALL = ["--width", "48", "--height", "32", "--frame_num", "5", "--sampling_steps", "2", "--device", "cpu"]
SMALL += ["--boundary", "0.9"]  # both experts have a step
ONE_STEP = ["--sampling_steps", "1"]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def jobs(toy_package, tmp_path):
    """Writes jobs that share the toy's image into a file; returns its path."""

    def write(*jobs, name="jobs.jsonl"):
        path = tmp_path / name
        image = str(toy_package / "example/image.png")
        path.write_text("".join(json.dumps({"image": image, "seed": 1, **job}) + "\n" for job in jobs))
        return path

    return write


@pytest.fixture
def run(toy_package, tmp_path, capsys):
    """Runs the command; returns its exit code, what it printed, and the manifest's rows."""

    def run(path, *more, package=toy_package):
        code = main(["batch", str(path), str(tmp_path / "out"), "--ckpt_dir", str(package), *SMALL, *more])
        manifest = tmp_path / "out/manifest.jsonl"
        rows = [json.loads(line) for line in manifest.open(encoding="utf-8")] if manifest.exists() else []
        return code, capsys.readouterr(), rows

    return run


@pytest.fixture
def loads(monkeypatch):
    """The experts that were loaded, in order."""
    found, load = [], stages.load_expert

    def counted(checkpoint, *arguments, **settings):
        found.append(Path(checkpoint.path).name.split("_")[0])
        return load(checkpoint, *arguments, **settings)

    monkeypatch.setattr(stages, "load_expert", counted)
    return found


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def shown(path: Path) -> str:
    """A hash of the frames: the file also says how they were made."""
    return hashlib.sha256(b"".join(frame.tobytes() for frame in colour_frames(path))).hexdigest()


def test_a_dry_run_checks_every_job_and_writes_nothing(jobs, run, tmp_path):
    path = jobs(
        {"prompt": "a castle", "keys": "w-8", "name": "one"},
        {"prompt": "a house", "keys": "w-8", "name": "two"},
        {"prompt": "a castle", "image": "nowhere.png", "name": "three"},
    )
    code, said, _ = run(path, "--dry-run")
    *_, failing, together, last = said.out.splitlines()
    assert failing.startswith("three would fail: ")
    assert "nowhere.png" in failing
    assert together == "48x32, 5 frames, 2 steps on cpu: one, two"
    assert last == "2 would be done, 0 were done before, 1 would fail"
    assert (code, (tmp_path / "out").exists()) == (BAD_INPUT, False)


def test_each_video_is_the_one_that_generate_makes(jobs, run, loads, toy_package, tmp_path):
    example = str(toy_package / "example")
    path = jobs(
        {"prompt": "a castle", "action_path": example, "name": "castle"},
        {"prompt": "a house by the sea", "action_path": example, "seed": 5},
        {"prompt": "a castle", "keys": "w-8", "seed": 7},
    )
    code, said, rows = run(path)
    assert (code, loads) == (0, ["high", "low"])
    assert said.out.splitlines()[-1].startswith("3 done, 0 were done before, 0 failed")
    assert [row["file"] for row in rows] == ["castle.mp4", "00002.mp4", "00003.mp4"]
    prompts, seeds = ("a castle", "a house by the sea", "a castle"), (1, 5, 7)
    cameras = example, example, tmp_path / "out/cameras/00003"
    for row, prompt, camera, seed in zip(rows, prompts, cameras, seeds, strict=True):
        alone = tmp_path / f"alone {row['name']}.mp4"
        given = ["--ckpt_dir", toy_package, "--image", toy_package / "example/image.png", "--prompt", prompt]
        given += ["--action_path", camera, "--seed", seed, "--output", alone]
        assert main(["generate", *map(str, given), *SMALL]) == 0
        assert (row["seed"], row["status"], row["settings"]["prompt"]) == (seed, "done", prompt)
        assert row["sha256"] == digest(tmp_path / "out" / row["file"]) == digest(alone)


def test_a_lora_is_for_all_jobs_and_the_experts_are_loaded_once(jobs, run, loads, toy_package, tmp_path, monkeypatch):
    write_lora(tmp_path / "look.safetensors", toy_package)
    monkeypatch.chdir(tmp_path)
    one, two = {"prompt": "a castle", "name": "one"}, {"prompt": "a house", "name": "two"}
    code, said, rows = run(jobs(one, two), "--lora", "low=look.safetensors:0.5")
    assert (code, loads) == (0, ["high", "low"]), said.err
    assert rows[0]["settings"]["lora"] == [{"path": f"{tmp_path}/look.safetensors", "strength": 0.5, "expert": "low"}]
    with_it = shown(tmp_path / "out/one.mp4")
    assert run(jobs(one, two), "--lora", "low=look.safetensors:0.5")[1].out.startswith("0 done, 2 were done before")
    assert run(jobs(one))[1].out.splitlines()[-1].startswith("1 done, 0 were done before")
    assert shown(tmp_path / "out/one.mp4") != with_it


def write_lora(path, package):
    """Of rank 2, on the head of the package's models."""
    shape = open_checkpoint(package / "low_noise_model_bnb_nf4").shapes["head.head.weight"]
    save_file(
        {
            "head.head.lora_A.weight": torch.ones(2, shape[1]),
            "head.head.lora_B.weight": torch.ones(shape[0], 2) / shape[1],
        },
        path,
    )


def test_done_jobs_are_skipped_and_changed_or_lost_ones_made(jobs, run, tmp_path):
    first, second = {"prompt": "a castle", "name": "one"}, {"prompt": "a house", "name": "two"}
    run(jobs(first, second), *ONE_STEP)
    before = digest(tmp_path / "out/one.mp4")
    assert run(jobs(first, second), *ONE_STEP)[1].out.startswith("0 done, 2 were done before")
    said = run(jobs(first, second | {"seed": 2}), *ONE_STEP)[1].out.splitlines()
    assert said[0] == f"two: seed changed since {tmp_path / 'out/two.mp4'} was made, so it is made again"
    assert said[-1].startswith("1 done, 1 were done before")
    (tmp_path / "out/one.mp4").unlink()
    code, said, rows = run(jobs(first, second | {"seed": 2}), *ONE_STEP)
    assert said.out.startswith("1 done, 1 were done before")
    assert [row["name"] for row in rows] == ["one", "two", "two", "one"]
    assert digest(tmp_path / "out/one.mp4") == before


@pytest.fixture
def copied_package(toy_package, tmp_path):
    """A package whose files a test may change."""
    return Path(shutil.copytree(toy_package, tmp_path / "package"))


def test_a_job_is_made_again_when_the_files_behind_its_names_have_changed(jobs, run, copied_package, tmp_path):
    image, poses = copied_package / "example/image.png", copied_package / "example/poses.npy"
    path = jobs(
        {"prompt": "a castle", "image": "package/example/image.png", "name": "one"},
        {"prompt": "a castle", "action_path": "package/example", "name": "two"},
    )
    run(path, *ONE_STEP, package=copied_package)
    before, video = shown(tmp_path / "out/one.mp4"), tmp_path / "out/one.mp4"
    os.utime(image)
    assert run(path, *ONE_STEP, package=copied_package)[1].out.startswith("0 done, 2 were done before")
    ImageOps.invert(Image.open(image).convert("RGB")).save(image)
    said = run(path, *ONE_STEP, package=copied_package)[1].out.splitlines()
    assert said[0] == f"one: the content of image changed since {video} was made, so it is made again"
    assert said[-1].startswith("1 done, 1 were done before")
    assert shown(video) != before
    np.save(poses, np.load(poses)[::-1])
    said = run(path, *ONE_STEP, package=copied_package)[1].out.splitlines()
    assert said[0].startswith("two: the content of action_path changed since ")
    assert said[-1].startswith("1 done, 1 were done before")


def test_jobs_are_made_again_when_a_part_of_the_package_has_changed_and_not_when_it_is_gone(
    jobs, run, copied_package, monkeypatch
):
    """Of a large file no more is read than its size and its time of change."""
    path = jobs({"prompt": "a castle", "image": "package/example/image.png", "name": "one"})
    monkeypatch.setattr(inputs, "KNOWN_BY_CONTENT", 10_000)
    run(path, *ONE_STEP, package=copied_package)
    os.utime(copied_package / "Wan2.1_VAE.pth", (1, 1))
    said = run(path, "--dry_run", *ONE_STEP, package=copied_package)[1].out
    assert said.startswith("one: the content of vae changed since ")
    (copied_package / "example/image.png").unlink()
    (copied_package / "Wan2.1_VAE.pth").unlink()
    assert run(path, *ONE_STEP, package=copied_package)[1].out.startswith("0 done, 1 were done before")


def test_what_an_older_version_has_made_is_not_made_again_until_its_files_change(jobs, run, copied_package, tmp_path):
    path, manifest = jobs({"prompt": "a castle", "name": "one"}), tmp_path / "out/manifest.jsonl"
    row = run(path, *ONE_STEP, package=copied_package)[2][0]
    manifest.write_text(json.dumps({key: value for key, value in row.items() if key != "files"}) + "\n")
    code, said, rows = run(path, *ONE_STEP, package=copied_package)
    assert (said.out.split(":")[0], rows[-1]) == ("0 done, 1 were done before, 0 failed", row)
    (copied_package / "tokenizer/tokenizer.json").open("a").write("\n")
    assert run(path, *ONE_STEP, package=copied_package)[1].out.startswith("one: the content of tokenizer changed")


def test_the_same_files_by_another_way_are_the_same(jobs, run, toy_package, tmp_path, monkeypatch):
    path = jobs({"prompt": "a castle", "image": str(toy_package / "example/../example/image.png"), "name": "one"})
    monkeypatch.chdir(toy_package / "example")
    run(path, *ONE_STEP, package="..")
    path = jobs({"prompt": "a castle", "name": "one"})
    assert run(path, *ONE_STEP)[1].out.startswith("0 done, 1 were done before")


def test_a_file_that_is_no_longer_what_was_written_is_made_again(jobs, run, tmp_path):
    path, video = jobs({"prompt": "a castle", "name": "one"}), tmp_path / "out/one.mp4"
    run(path, *ONE_STEP)
    before = digest(video)
    with video.open("ab") as file:
        file.write(b"x")
    code, said, rows = run(path, *ONE_STEP)
    assert f"one: {video} has changed since it was written, so it is made again\n" in said.out
    assert said.out.splitlines()[-1].startswith("1 done, 0 were done before")
    assert digest(video) == before == rows[-1]["sha256"]


def test_two_batches_do_not_share_a_folder(jobs, run, tmp_path):
    path = jobs({"prompt": "a castle"})
    (tmp_path / "out").mkdir()
    with lock_batch(tmp_path / "out"):
        code, said, rows = run(path)
        assert (code, rows) == (BAD_INPUT, [])
        assert f"{tmp_path / 'out'}: another batch is at work in this folder" in said.err
    assert run(path, *ONE_STEP)[0] == 0


def test_a_video_that_no_batch_has_made_is_kept_alone_and_beside_those_of_one(jobs, run, tmp_path):
    (tmp_path / "out").mkdir()
    old, one = tmp_path / "out/mine.mp4", {"prompt": "a castle", "name": "one"}
    old.write_text("precious")
    both = jobs(one, {"prompt": "a castle", "name": "mine"}, name="both.jsonl")
    for made in (0, 1):
        code, said, rows = run(both, *ONE_STEP)
        assert (code, len(rows), old.read_text()) == (BAD_INPUT, made, "precious")
        assert f"{old} exists already; write elsewhere, or give --overwrite" in said.err
        run(jobs(one), *ONE_STEP)
    assert run(both, *ONE_STEP, "--overwrite")[1].out.startswith("1 done, 1 were done before")
    assert old.stat().st_size > 500


def test_a_video_whose_making_was_interrupted_is_replaced(jobs, run, monkeypatch, tmp_path):
    def interrupted(plan, *_):
        plan.target.path.write_text("half of it")
        raise KeyboardInterrupt

    path = jobs({"prompt": "a castle", "name": "one"})
    monkeypatch.setattr(batch, "condition_on_image", interrupted)
    assert run(path, *ONE_STEP)[0] == 130
    monkeypatch.undo()
    code, said, rows = run(path, *ONE_STEP)
    assert (code, [row["status"] for row in rows]) == (0, ["failed", "done"])
    assert said.out.startswith("1 done, 0 were done before")


def test_a_preset_lasts_as_long_as_in_generate(jobs, run, toy_package, tmp_path):
    """Of 12 frames it has 13 poses, of which the video, 9 frames, takes a part."""
    job = {"prompt": "a castle", "preset": "pan_left", "frame_num": 12, "name": "one"}
    code, said, _ = run(jobs(job), *ONE_STEP)
    given = ["--ckpt_dir", toy_package, "--image", toy_package / "example/image.png", "--prompt", "a castle"]
    given += ["--preset", "pan_left", "--seed", 1, "--output", tmp_path / "alone.mp4"]
    assert (code, main(["generate", *map(str, given), *SMALL, *ONE_STEP, "--frame_num", "12"])) == (0, 0), said.err
    assert shown(tmp_path / "out/one.mp4") == shown(tmp_path / "alone.mp4")


ROWS = b'"done", "file": 5, "sha256": "x", "settings": {}}\n{"name": [], "status": "done", "file": "x"}\n'


@pytest.mark.parametrize(
    "rest", [b'"done", "settings": {"prompt": "\xc3', b'"done"}\n', b'"done", "\xff\n5\n[]\n{}\n', ROWS]
)
def test_a_manifest_is_read_whatever_has_become_of_it(jobs, run, tmp_path, rest):
    """Cut short within a letter, with less in it than a row has, with lines that are no rows."""
    video = tmp_path / "out/one.mp4"
    video.parent.mkdir()
    video.write_text("precious")
    (tmp_path / "out/manifest.jsonl").write_bytes(b'{"name": "one", "status": ' + rest)
    path = jobs({"prompt": "a castle", "name": "one"})
    assert main(["batch", str(path), str(video.parent), "--ckpt_dir", "nowhere", *SMALL, "--dry_run"]) == BAD_INPUT
    assert video.read_text() == "precious"


@pytest.mark.parametrize("more", [[], ["--dry_run"]])
def test_a_file_in_the_place_of_the_folder_is_refused(jobs, capsys, tmp_path, more):
    (tmp_path / "out").write_text("precious")
    command = ["batch", str(jobs({"prompt": "a castle"})), str(tmp_path / "out"), "--ckpt_dir", "nowhere", *more]
    assert main(command) == BAD_INPUT
    assert (tmp_path / "out").read_text() == "precious"
    assert f"{tmp_path / 'out'}: a file; expected a folder for the videos" in capsys.readouterr().err


def test_workers_without_ray_is_refused(jobs, run):
    code, said, rows = run(jobs({"prompt": "a castle"}), "--workers", "2")
    assert (code, rows) == (BAD_INPUT, [])
    assert "--workers is the number of Ray actors: give --ray too" in said.err


def test_what_several_jobs_have_in_common_is_said_once(jobs, run):
    path = jobs(*({"prompt": "a castle", "preset": "static", "seed": seed} for seed in range(5)))
    said = run(path, *ONE_STEP)[1].out.splitlines()
    assert said[:-1] == ["00001, 00002, 00003 and 2 more: The camera does not move: the model gets a standing camera."]


def test_a_manifest_that_was_cut_short_is_gone_on_with(jobs, run, toy_package, tmp_path, capsys):
    path = jobs({"prompt": "a castle"}, {"prompt": "a house"})
    run(path, *ONE_STEP)
    manifest = tmp_path / "out/manifest.jsonl"
    text = manifest.read_text()
    manifest.write_text(text[:-20])
    command = ["batch", str(path), str(tmp_path / "out"), "--ckpt_dir", str(toy_package), *SMALL, *ONE_STEP]
    assert main(command) == main(command) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(" were")[0] for line in said] == ["1 done, 1", "0 done, 2"]


def test_a_job_that_cannot_start_is_noted_and_passed_over(jobs, run, tmp_path):
    path = jobs({"prompt": "a castle", "image": "missing.png"}, {"prompt": "a house"})
    code, said, rows = run(path, *ONE_STEP)
    assert code == BAD_INPUT
    assert said.out.splitlines() == [
        f"00001 failed: --image {tmp_path / 'missing.png'}: no such file",
        f"1 done, 0 were done before, 1 failed: {tmp_path / 'out/manifest.jsonl'}",
    ]
    assert "1 failed" in said.err
    assert [(row["name"], row["status"]) for row in rows] == [("00001", "failed"), ("00002", "done")]
    assert rows[0]["error"] == f"`image` {tmp_path / 'missing.png'}: no such file"
    assert not (tmp_path / "out/00001.mp4").exists()


def test_a_job_that_fails_on_the_way_takes_no_other_with_it(jobs, run, monkeypatch):
    write = batch.write_frames

    def failing(frames, target, *rest):
        if target.path.stem == "two":
            raise OSError(28, "No space left on device")
        return write(frames, target, *rest)

    monkeypatch.setattr(batch, "write_frames", failing)
    three = jobs(*({"prompt": "a castle", "name": name} for name in ("one", "two", "three")))
    code, said, rows = run(three, *ONE_STEP)
    assert {row["name"]: row["status"] for row in rows} == {"one": "done", "two": "failed", "three": "done"}
    assert code == BAD_INPUT
    monkeypatch.undo()
    code, said, rows = run(three, *ONE_STEP)
    assert (code, said.out.split(",")[0]) == (0, "1 done")


def test_a_manifest_that_cannot_be_written_is_named(jobs, run, tmp_path, monkeypatch):
    opened = Path.open

    def full(path, mode="r", *more, **options):
        if mode == "a":
            raise OSError(28, "No space left on device")
        return opened(path, mode, *more, **options)

    monkeypatch.setattr(Path, "open", full)
    code, said, rows = run(jobs({"prompt": "a castle", "image": "missing.png"}))
    assert (code, rows) == (BAD_INPUT, [])
    assert f"{tmp_path / 'out/manifest.jsonl'}: cannot be written (No space left on device); make room" in said.err


def test_other_sizes_make_other_groups(jobs, run, loads):
    path = jobs({"prompt": "a castle"}, {"prompt": "a castle", "width": 32, "height": 48}, {"prompt": "a house"})
    code, _, rows = run(path)
    assert (code, loads) == (0, ["high", "low"])  # kept for the second group
    assert [row["name"] for row in rows] == ["00001", "00003", "00002"]


def test_a_table_says_the_same_as_lines_of_json(jobs, toy_package, tmp_path):
    given = [{"prompt": "a castle, at sea", "guide_scale": "4,6", "preset": "dolly_in", "size": "48*64", "name": "a"}]
    lines = jobs(*given)
    table = tmp_path / "jobs.csv"
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "shift"])
        writer.writeheader()
        writer.writerows(rows)
    defaults = GenerateOptions(ckpt_dir=toy_package, prompt="", output=tmp_path)
    (one,), (other,) = (read_jobs(path, defaults, tmp_path) for path in (lines, table))
    assert one == other
    assert (one.options.guide_scale, one.options.max_area, one.options.seed) == ((4.0, 6.0), 48 * 64, 1)
    assert one.camera == ("preset", "dolly_in")


def test_a_causal_model_makes_them_one_by_one(jobs, run, toy_package):
    path = jobs({"prompt": "a castle", "frame_num": 9}, {"prompt": "a house", "frame_num": 9, "seed": 3})
    more = ["--sampling_steps", "40", "--boundary", "0.947"]
    code, said, rows = run(path, *more, package=toy_package / "lingbot_world_fast")
    assert (code, [row["status"] for row in rows]) == (0, ["done", "done"]), rows
    assert [row["seed"] for row in rows] == [1, 3]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": "a", "imgae": "x"}', "line 1: unknown: imgae; a job takes action_path"),
        ('{"prompt": "a", "output": "x.mp4"}', "line 1: unknown: output"),
        ('{"prompt": "a", "name": "../x"}', "the name '../x' cannot be a file's"),
        ('{"prompt": "a", "seed": 1.5}', "line 1: seed 1.5: expected a whole number"),
        ('{"prompt": "a", "seed": true}', "line 1: seed True: expected a whole number"),
        ('{"prompt": "a", "shift": "much"}', "line 1: shift 'much': expected a number"),
        ('{"prompt": "a", "reuse_threshold": "much"}', "line 1: reuse_threshold 'much': expected a number"),
        ('{"prompt": "a", "size": "big"}', "line 1: size 'big' is not like 480x832"),
        ('{"prompt": "a", "keys": "w-4", "preset": "dolly_in"}', "preset and keys exclude each other"),
        ('{"image": "a.png"}', "line 1: prompt is missing"),
        ('{"prompt": "a"', "line 1: not JSON"),
        ('["a"]', "line 1: expected an object in braces, found list"),
        ("", "no jobs in it"),
        ('{"prompt": "a", "name": "x"}\n{"prompt": "b", "name": "x"}', "line 2: a second job is called 'x'"),
    ],
)
def test_a_file_of_jobs_that_is_wrong_is_refused_before_anything_runs(run, tmp_path, line, said):
    path = tmp_path / "jobs.jsonl"
    path.write_text(line)
    code, printed, rows = run(path)
    assert (code, rows) == (BAD_INPUT, [])
    assert f"{path}" in printed.err
    assert said in printed.err


def test_a_job_may_reuse_steps_and_be_called_like_a_file(jobs, run, tmp_path):
    """U+2028 ends a line for Python's splitlines, and not for JSON."""
    job = {"prompt": "a castle\u2028by the sea", "reuse_threshold": 0.02, "keys": "w-8", "name": "walk.json"}
    (tmp_path / "lines.jsonl").write_text(json.dumps(json.loads(jobs(job).read_text()), ensure_ascii=False))
    code, said, rows = run(tmp_path / "lines.jsonl")
    assert code == 0, rows
    assert run(tmp_path / "lines.jsonl")[1].out.startswith("0 done, 1 were done before")
    settings = json.loads((tmp_path / "out/manifest.jsonl").read_text())["settings"]
    assert (settings["prompt"], settings["reuse_threshold"]) == (job["prompt"], 0.02)
    assert (tmp_path / "out/cameras/walk.json/poses.npy").is_file()


def test_an_interrupted_batch_says_that_it_can_go_on(jobs, run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(batch, "run_steps", interrupted)
    code, said, rows = run(jobs({"prompt": "a castle"}))
    assert (code, rows) == (130, [])
    assert said.err.endswith("interrupted; the same command makes the videos that are not done\n")


def test_a_model_that_stays_multiplies_as_a_loaded_one():
    """With 8bit a weight in NVFP4 or MXFP8 is multiplied in its own format, with int8 it is not."""
    cache, model = ModelCache(), LingBotWorldModel(model_cases.SMALL, device="meta")
    cache._experts["high"] = None, model
    for arithmetic, own_format in (("8bit", True), ("int8", False)):
        options = SimpleNamespace(arithmetic=arithmetic, attention="auto")
        plan = SimpleNamespace(options=options, device=torch.device("cpu"))
        assert cache.expert(plan, "high", None) is model
        layer = model.blocks[0].self_attn.q
        assert (layer.arithmetic, layer.own_format) == ("int8", own_format)
