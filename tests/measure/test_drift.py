"""`lingbot-world measure`: faults put into a clip are named with their second, a clean clip has none."""

import json

import cv2
import numpy as np
import pytest
from lingbot_world.errors import InputError
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.files.target import find_target
from lingbot_world.headless.files.video import write_frames
from lingbot_world.measure.drift import (
    FrameMetrics,
    as_values,
    find_faults,
    measure_frames,
    render_drift,
    summary,
    table,
)
from PIL import Image

FRAMES, FPS = 81, 16


def blurred(frames):
    return np.stack([cv2.GaussianBlur(each, (0, 0), 0.05 + max(0, at - 32) * 0.08) for at, each in enumerate(frames)])


def tinted(frames):
    grown = np.clip(np.arange(len(frames)) - 40, 0, 20)[:, None, None, None] * [1, 0, -1]
    return np.clip(frames + grown, 0, 255).astype(np.uint8)


def shards(frames):
    """Blocks of one random colour each, of which ever more replace the picture."""
    random, seen = np.random.default_rng(0), frames.copy()
    begins, colours = 30 + 20 * random.random((15, 20)), random.integers(0, 255, (15, 20, 3), np.uint8)
    for at, frame in enumerate(seen):
        shown, drawn = (np.repeat(np.repeat(each, 6, 0), 8, 1) for each in (begins < at, colours))
        frame[shown] = drawn[shown]
    return seen


def frozen(frames):
    return np.concatenate([frames[:31], np.repeat(frames[30:31], 16, 0), frames[47:]])


def with_seams(frames):
    return np.concatenate([np.roll(frames[at : at + 12], 5 * (at // 12), axis=2) for at in range(0, len(frames), 12)])


def flickering(frames):
    lit = (np.arange(len(frames)) % 2 * (np.arange(len(frames)) > 40) * 6)[:, None, None, None]
    return np.clip(frames + lit, 0, 255).astype(np.uint8)


def repeating(frames):
    return np.concatenate([frames[:40], frames[10:51]])


FAULTS = {
    "sharpness": (blurred, 2.0, 0.5),
    "tint": (tinted, 2.5, 0.2),
    "frozen": (frozen, 1.9, 0.2),
    "seams": (with_seams, 0.7, 0.2),
    "flicker": (flickering, 2.2, 0.4),
    "repeat": (repeating, 2.5, 0.2),
}
"""Faults by name: the function that puts one into a clip of 81 frames, the second at which it begins, and the limit in
seconds of its detection."""


@pytest.fixture(scope="module")
def clip():
    """uint8 [81, 90, 160, 3]: a window that slides over a coloured texture, with noise."""
    random = np.random.default_rng(0)
    texture = sum(cv2.GaussianBlur(random.normal(0, size * 40, (120, 400, 3)), (0, 0), size) for size in (2, 4, 8))
    seen = [texture[15:105, frame : frame + 160] + random.normal(0, 2, (90, 160, 3)) for frame in range(FRAMES)]
    return np.clip(np.stack(seen) + [140, 120, 100], 0, 255).astype(np.uint8)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_second(clip, name):
    spoil, begins_s, within_s = FAULTS[name]
    faults = find_faults(measure_frames(spoil(clip), FPS))
    assert [fault.name for fault in faults] == [name]
    assert begins_s <= faults[0].begins_s <= begins_s + within_s
    assert f"second {faults[0].begins_s:.1f}" in faults[0].words


def test_a_picture_that_decays_to_shards_drifts(clip):
    faults = find_faults(measure_frames(shards(clip), FPS))
    assert {fault.name for fault in faults} & {"sharpness", "colour"}
    assert faults[0].begins_s >= 1.5
    assert "it is more than 1" in faults[0].words


def with_changes(**changes):
    """The metrics of 20 seconds without a fault, with those in `changes` replaced."""
    still, looks = np.zeros(20 * FPS), np.full(20 * FPS, 40.0)
    kinds = ("sharpness", "colourfulness", "tint", "brightness")
    values = dict.fromkeys(kinds, looks) | {f"{kind}_change": still for kind in kinds}
    thumbnails, motion = np.zeros((len(still), 18, 32), np.float32), np.zeros((len(still), 2))
    rest = {"change": still, "thumbnails": thumbnails, "motion": motion, "residual": still, "fps": FPS}
    return FrameMetrics(**{**values, **rest, **changes})


def test_a_slow_tint_of_tracked_content_is_drift_in_changing_rooms():
    seconds = np.arange(20 * FPS) / FPS
    rooms = 40 + 30 * np.sign(np.sin(seconds))
    for change, found in ((28, ["tint"]), (20, [])):
        metrics = with_changes(tint=rooms, tint_change=change * seconds / 20)
        assert [fault.name for fault in find_faults(metrics)] == found


@pytest.mark.parametrize("measure", ["sharpness", "colourfulness"])
def test_tracked_content_and_picture_have_to_change_the_same_way(measure):
    ramp = np.linspace(0, 1.6, 20 * FPS)
    for way in (1, -1):
        picture = {measure: 40 * np.exp(way * ramp)}
        assert find_faults(with_changes(**picture, **{f"{measure}_change": ramp * way}))
        assert not find_faults(with_changes(**picture, **{f"{measure}_change": -0.4 * ramp * way}))


def test_a_video_that_fades_in_is_darker_from_its_first_frame_on(clip):
    faded = (clip * np.minimum(1, np.arange(FRAMES) / FPS / 1.5)[:, None, None, None]).astype(np.uint8)
    fault = next(fault for fault in find_faults(measure_frames(faded, FPS)) if fault.name == "brightness")
    assert fault.begins_s == 0
    assert "from second 0.0 on it is brighter or darker" in fault.words


def test_a_clean_clip_and_one_that_stands_still_have_no_fault(clip):
    for frames in (clip, np.repeat(clip[:1], FRAMES, 0), np.repeat(clip[..., :1], 3, 3), np.zeros_like(clip)):
        figures = measure_frames(frames, FPS)
        assert find_faults(figures) == []
        assert summary(figures, []) == ["No drift found in 81 frames, 5.1 s."]
        assert len(table(figures)) == 1 + 6


def test_a_pan_to_a_blank_wall_is_no_drift():
    """Sharpness and colours of the picture as a whole go; the places that it shows keep theirs."""
    random = np.random.default_rng(0)
    texture = sum(cv2.GaussianBlur(random.normal(0, size * 40, (90, 420, 3)), (0, 0), size) for size in (2, 4, 8))
    wall = np.clip(np.linspace(1, -0.2, 420), 0.02, 1)[None, :, None]
    seen = [(texture * wall + [140, 120, 100])[:, 3 * frame : 3 * frame + 160] for frame in range(FRAMES)]
    figures = measure_frames(np.clip(np.stack(seen), 0, 255).astype(np.uint8), FPS)
    assert figures.colourfulness[-1] < 0.5 * figures.colourfulness[0]
    assert find_faults(figures) == []


def test_the_report_as_picture_and_values(clip):
    figures = measure_frames(blurred(clip), FPS)
    faults = find_faults(figures)
    assert render_drift(figures, faults).size == (800, 500)
    with pytest.raises(InputError, match="at least 400x250 and at most 4096x4096"):
        render_drift(figures, faults, (100, 100))
    values = json.loads(json.dumps(as_values(figures, faults)))
    assert values["warnings"][0]["name"] == "sharpness"
    assert all(len(values[name]) == FRAMES for name in ("sharpness", "brightness", "change"))


def test_short_and_empty_videos():
    with pytest.raises(InputError, match="a video of 1 frames: expected at least 2"):
        measure_frames(np.zeros((1, 48, 64, 3), np.uint8), FPS)
    for count in (2, 5):
        assert find_faults(measure_frames(np.zeros((count, 48, 64, 3), np.uint8), FPS)) == []


def test_a_table_has_a_row_for_each_second_with_frames(clip):
    figures = measure_frames(clip[:3], 0.001)
    assert [line.split()[0] for line in table(figures)] == ["second", "0", "1000", "2000"]


def test_the_command_measures_a_video_and_a_folder(tmp_path, capsys, clip):
    pytest.importorskip("av")
    write_frames(frozen(clip)[:, :, :144], find_target(tmp_path / "video.mp4"))
    write_frames(clip[:5], find_target(tmp_path / "folder"))
    drawing = tmp_path / "drift.png"
    assert main(["measure", str(tmp_path / "video.mp4"), "--drawing", str(drawing)]) == 0
    assert "it stands still for 1." in capsys.readouterr().out
    assert drawing.read_bytes().startswith(b"\x89PNG")
    drawing.write_text("precious")
    assert main(["measure", str(tmp_path / "video.mp4"), "--drawing", str(drawing)]) == 2
    assert (drawing.read_text(), capsys.readouterr().out) == ("precious", "")
    assert main(["measure", str(tmp_path / "video.mp4"), "--drawing", str(drawing), "--overwrite"]) == 0
    capsys.readouterr()
    assert main(["measure", str(tmp_path / "folder"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["frames"] == 5
    Image.new("RGBA", (160, 90)).save(min((tmp_path / "folder").iterdir()))
    assert main(["measure", str(tmp_path / "folder"), "--json"]) == 0
    assert "is transparent in places" in json.loads(capsys.readouterr().out)["notes"][0]
    assert main(["measure", str(tmp_path / "nothing.mp4")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["measure", str(tmp_path / "folder"), "--fps", "0"]) == 2
    with pytest.raises(InputError, match="`fps` 0.0: expected 0.001 or more"):
        measure_frames(iter(()), 0.0)


def test_a_video_that_cannot_be_measured_is_named(tmp_path, capsys, clip):
    pytest.importorskip("av")
    write_frames(clip[:1], find_target(tmp_path / "one.mp4"))
    assert main(["measure", str(tmp_path / "one.mp4")]) == 2
    assert f"{tmp_path / 'one.mp4'}: a video of 1 frames: expected at least 2" in capsys.readouterr().err
