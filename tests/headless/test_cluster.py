"""`lingbot-world batch --ray` on a local Ray cluster of CPU workers, one of which is killed."""

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lingbot_world.errors import DependencyError, InputError
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.many.cluster import LOCAL, ray_runner

JOBS = int(os.environ.get("LINGBOT_JOBS", "3"))
SETTINGS = ["--width", "32", "--height", "32", "--frame_num", "5", "--sampling_steps", "2", "--device", "cpu"]
COMMAND = [sys.executable, "-m", "lingbot_world"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


@pytest.fixture(scope="module", autouse=True)
def _ray():
    pytest.importorskip("ray", reason="RAY SKIPPED: not installed; pip install ray")


def estimate_releases(manifest: Path) -> list[dict]:
    return [json.loads(line) for line in manifest.read_text().splitlines()] if manifest.exists() else []


def workers() -> list[int]:
    """The process ids of Ray's actors, which name themselves after what they do."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "cmdline").read_bytes().startswith(b"ray::Worker"):
                found.append(int(folder.name))
    return found


def run_and_kill(command: list, manifest: Path) -> tuple[int, str, str]:
    """Runs a batch, whatever cluster RAY_ADDRESS names, and kills one of its workers after the first video. Its exit
    code, and what it said."""
    environment = ENVIRONMENT | {"RAY_ADDRESS": "127.0.0.1:9"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        while run.poll() is None:
            if estimate_releases(manifest) and (killed := workers()):
                os.kill(killed[0], signal.SIGKILL)
                break
            time.sleep(0.1)
        said, errors = run.communicate(timeout=1800)
    return run.returncode, said, errors


@pytest.mark.usefixtures("one_thread")
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks into /proc")
def test_every_job_is_done_once_though_a_worker_is_killed(toy_package, tmp_path):
    image, out = toy_package / "example/image.png", tmp_path / "out"
    lines = [{"image": str(image), "prompt": "a castle", "seed": seed, "shift": 5 + seed / 10} for seed in range(JOBS)]
    jobs = tmp_path / "jobs.jsonl"  # with a shift of its own each job is a group of its own
    jobs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [*COMMAND, "batch", jobs, out, "--ckpt_dir", toy_package, *SETTINGS, "--ray", "--workers", "2"]
    for _ in range(3):
        code, said, errors = run_and_kill(command, out / "manifest.jsonl")
        if "Ray does not start here" not in errors:
            break
    else:
        pytest.skip("RAY SKIPPED: it did not start in the 30 s that it gives itself, three times")
    assert code == 0, errors
    assert f"{JOBS} done, 0 were done before, 0 failed" in said  # Ray tells of the worker before
    rows = estimate_releases(out / "manifest.jsonl")
    assert sorted(row["seed"] for row in rows) == list(range(JOBS))
    for row in rows:
        digest = hashlib.sha256((out / row["file"]).read_bytes()).hexdigest()
        seed, alone = row["seed"], tmp_path / "single.mp4"
        given = ["--ckpt_dir", toy_package, "--image", image, "--prompt", "a castle", "--output", alone, "--overwrite"]
        assert main(["generate", *map(str, given), *SETTINGS, "--seed", str(seed), "--shift", str(5 + seed / 10)]) == 0
        assert row["sha256"] == digest == hashlib.sha256(alone.read_bytes()).hexdigest()


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DependencyError, match=r"Ray is not installed; install with: pip install .lingbot-world"):
        ray_runner(LOCAL, 1, on_gpus=False)


def test_a_start_of_ray_that_fails_is_one_sentence(monkeypatch):
    def failing(**_settings):
        raise ConnectionError("Could not find any running Ray instance.\nMore of it.")

    monkeypatch.setattr("ray.init", failing)
    what_to_do = "; start a cluster with `ray start --head` and give the HOST:PORT that it prints"
    for address, said, then in ((LOCAL, "start here", ""), ("auto", "connect there", what_to_do)):
        with pytest.raises(InputError) as refused:
            ray_runner(address, 1, on_gpus=False)
        why = "(Could not find any running Ray instance)"
        assert str(refused.value) == f"`ray` {address}: Ray does not {said} {why}{then}"


def test_an_address_without_a_cluster_is_refused_within_seconds(toy_package, tmp_path):
    """Ray itself asks for minutes, at a port where nobody listens and at one where something else does."""
    (tmp_path / "jobs.jsonl").write_text(json.dumps({"image": str(toy_package / "example/image.png"), "prompt": "a"}))
    command = ["batch", tmp_path / "jobs.jsonl", tmp_path / "out", "--ckpt_dir", toy_package, *SETTINGS, "--ray"]
    both = (
        "import sys; from lingbot_world.headless.command.cli import main; "
        "print([main([*sys.argv[3:], address]) for address in sys.argv[1:3]])"
    )
    environment = ENVIRONMENT | {"RAY_gcs_rpc_server_connect_timeout_s": "1"}  # 5 by itself
    with socket.create_server(("127.0.0.1", 0)) as another, socket.create_server(("127.0.0.1", 0)) as nobody:
        addresses = [f"127.0.0.1:{port.getsockname()[1]}" for port in (another, nobody)]
        nobody.close()
        words = [sys.executable, "-c", both, *addresses, *command]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=600)
    assert done.stdout.splitlines()[-1] == "[2, 2]", done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("lingbot-world: ")]
    for address, last in zip(addresses, said, strict=True):
        assert f"--ray {address}: Ray does not connect there (Timed out while waiting for GCS" in last
        assert "start a cluster with `ray start --head` and give the HOST:PORT" in last
