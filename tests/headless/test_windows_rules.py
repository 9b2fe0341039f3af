"""The command under Windows' rules, played on Linux (windows_rules.py): what people do first works, and again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux' /proc")
RULES = Path(__file__).parents[1] / "windows_rules.py"


def run(folder: Path, *commands: list) -> tuple[list[int], str]:
    """The exit codes of commands in one process, and what was said."""
    words = json.dumps([[str(word) for word in command] for command in commands])
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", RULES, words],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_the_command_works_by_windows_rules(toy_package, golden, tmp_path):
    causal = toy_package / "lingbot_world_fast"
    given = ["--image", toy_package / "example/image.png", "--prompt", "a castle", "--width", 32, "--height", 32]
    few = ["--device", "cpu", "--schedule", "0,500"]
    video = ["generate", "--ckpt_dir", causal, *given, *few, "--output", "v.mp4", "--save_state", "a.state"]
    more = ["generate", "--ckpt_dir", causal, *given, *few, "--output", "w.mp4", "--continue_from", "a.state"]
    jobs = tmp_path / "jobs.jsonl"
    job = {"image": str(toy_package / "example/image.png"), "prompt": "a castle", "width": 32, "height": 32}
    jobs.write_text(json.dumps({**job, "frame_num": 9, "name": "one"}), encoding="utf-8")
    codes, said = run(
        tmp_path,
        ["toy", "--random", "toy"],
        ["toy", "--random", "toy"],  # over the one that was there
        ["quantize", golden / "causal/model", "nf4", "--device", "cpu"],
        [*video, "--frame_num", 9],
        [*video, "--frame_num", 9, "--overwrite"],
        [*more, "--frame_num", 12, "--save_state", "a.state"],  # the state that it goes on from
        ["generate", "--ckpt_dir", causal, *given, *few, "--frame_num", 9, "--output", "png"],
        ["generate", "--ckpt_dir", causal, *given, *few, "--frame_num", 9, "--output", "png", "--overwrite"],
        ["batch", jobs, "videos", "--ckpt_dir", causal, *few],
        ["batch", jobs, "videos", "--ckpt_dir", causal, *few],
        ["camera", "make", "path", "--preset", "dolly_in"],
        ["camera", "convert", "path", "path.json"],
        ["generate", "--ckpt_dir", causal, *given, *few, "--frame_num", 9, "--output", "a?.mp4"],
        [*video, "--frame_num", 9, "--overwrite", "--save_state", "con.state"],
        ["toy", "--random", "nul"],
        ["camera", "make", "aux", "--preset", "dolly_in"],
        ["camera", "convert", "path", r"C:\out\path.json"],
    )
    assert codes == [0] * (len(codes) - 5) + [2] * 5, said[-3000:]
    refused = (
        "a?.mp4: cannot be",
        "con.state: cannot be",
        "nul: the folder",
        "aux: the folder",
        "path.json: cannot be",
    )
    assert [words for words in refused if words not in said] == []
    assert "Traceback" not in said
    assert {"v.mp4", "w.mp4", "a.state", "png", "nf4"} <= {file.name for file in tmp_path.iterdir()}
    assert not [*tmp_path.rglob("*.part"), *tmp_path.glob("*.lock")]
