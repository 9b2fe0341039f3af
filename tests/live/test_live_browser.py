"""The page of a live walk in a real browser, in the trained maze; the recorded walk follows what was pressed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import lingbot_world
import numpy as np
import pytest
from browser_runner import run_live
from lingbot_world.camera.moves.keys import STEP
from lingbot_world.headless.command.cli import main
from lingbot_world.live.camera import WALKING_SPEED
from live_cases import Server

WEB = Path(lingbot_world.__file__).parent / "web" / "live"


@pytest.fixture(scope="module")
def walked(toy_world, tmp_path_factory):
    """What the tests in the browser say, and the folder of the walks."""
    folder = tmp_path_factory.mktemp("live")
    words = ["live", toy_world, "--no_open", "--port", "0", "--walks", folder / "walks"]
    words += ["--width", 160, "--height", 96]  # small enough for 16 frames a second on a CPU that has other work
    process = subprocess.Popen(
        [sys.executable, "-m", "lingbot_world", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    try:
        address = next(line.strip() for line in process.stdout if line.startswith("http://127"))
        yield run_live(address), folder / "walks"
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_the_page_works_in_a_browser(walked):
    (passed, text), _ = walked
    assert passed, text[max(text.find("not ok"), 0) :][:6000]


def test_the_page_shows_turns_and_saves_as_it_should():
    """The page against a server of the test's own, which makes frames as it is told."""
    passed, text = run_live("", "live_page.test.mjs")
    assert passed, text[max(text.find("not ok"), 0) :][:6000]


def test_the_page_works_for_who_has_the_token(toy_package, tmp_path):
    with Server(toy_package, tmp_path, token="told in the address") as server:
        passed, text = run_live(f"http://127.0.0.1:{server.port}/?token=told+in+the+address", "lan.test.mjs")
    assert passed, text[max(text.find("not ok"), 0) :][:6000]


def test_the_walk_with_w_goes_straight_ahead(walked):
    """Of the first walk the path goes forward in the end at full speed, and its video has as many frames as poses."""
    av = pytest.importorskip("av")
    poses = np.load(walked[1] / "walk-1/camera/poses.npy")
    assert poses[-1, 2, 3] > 0.5
    assert np.abs(poses[-1, :2, 3]).max() < 1e-9
    moved = np.diff(poses[:, 2, 3])
    assert moved.max() == pytest.approx(WALKING_SPEED * STEP)
    with av.open(str(walked[1] / "walk-1/walk.mp4")) as video:
        assert sum(1 for _ in video.decode(video=0)) == len(poses)


def test_the_video_of_that_walk_follows_it(walked, capsys):
    """The camera that is found in the page's video went straight ahead. The walk's seed is drawn, and in small soft
    pictures some pairs are not told, or told up to 11 degrees off: a half of them suffices, where a walk of another
    direction would have none."""
    for library in ("cv2", "pycolmap"):
        pytest.importorskip(library)
    main(["camera", "measure", str(walked[1] / "walk-1/walk.mp4"), str(walked[1] / "walk-1/camera"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["follows"] is not False, found
    assert found["pairs_judged"] >= 5, found
    assert found["pairs_following"] > 0.5 * found["pairs_judged"], found
    assert found["median_direction_error_deg"] < 20, found


def test_the_page_stays_small_and_asks_nothing_of_other_sites():
    for path in WEB.iterdir():
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 300 or path.suffix == ".json", path.name
        assert "://" not in text, path.name
        assert "<script>" not in text, path.name
    assert not list(WEB.glob("*.js"))  # ComfyUI would load them into its own page
