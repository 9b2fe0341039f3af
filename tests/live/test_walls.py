"""The maze's walls stop a walk where the renderer's boxes stand, and its crate is found."""

import json
from dataclasses import replace
from pathlib import Path

import lingbot_world
import numpy as np
import pytest
import torch
from lingbot_world.errors import InputError
from lingbot_world.live import Session
from lingbot_world.live.camera import FASTEST_PITCH_DEG, WALKING_UNIT, WalkingCamera
from lingbot_world.live.controls import FrameInputs
from lingbot_world.live.worlds.walls import Place, mean_colours, read_map
from lingbot_world.tools.toy import pack
from lingbot_world.tools.toy.rooms import MARGIN, bumped, clearance
from live_cases import chunks, opened
from PIL import Image

EXAMPLE = Path(lingbot_world.__file__).parent / "toy/maze/example"
pytestmark = pytest.mark.usefixtures("one_thread")


def first_frame(name):
    pixels = np.array(Image.open(EXAMPLE / f"{name}.png").convert("RGB").resize((256, 144)))
    return torch.from_numpy(pixels).permute(2, 0, 1) / 127.5 - 1


def walked(standing, seed, frames=400):
    """Poses of a camera that keys drive about for a while, the first included."""
    random = np.random.default_rng(seed)
    held = np.repeat(random.choice([-1.0, 0.0, 1.0], (frames // 10, 4), p=[0.1, 0.3, 0.6]), 10, axis=0)
    camera = WalkingCamera(None, WALKING_UNIT, 1.0, FASTEST_PITCH_DEG, standing)
    return np.concatenate([camera.pose[None], camera.move(FrameInputs(held * [1, 1, 1, 0], (0, 0), None))])


def test_the_shipped_map_is_the_renderers():
    made = json.loads(json.dumps(pack.world_map({"image": pack.example(), "snow": pack.other("snow")})))
    shipped = json.loads((EXAMPLE / "map.json").read_text())
    places = {place["name"]: place for place in shipped.pop("places")}
    assert places.keys() == {"image", *pack.OTHERS}
    for place in made.pop("places"):
        known = places[place["name"]]
        assert np.abs(np.subtract(place.pop("look"), known.pop("look"))).max() <= 1
        assert place == known
    assert made == shipped


@pytest.mark.parametrize(("seed", "name"), [*enumerate(["image", "fog", "night", "snow", "yellow"])])
def test_walls_stop_a_camera_where_the_renderers_do(seed, name):
    scene = pack.example() if name == "image" else pack.other(name)
    standing = read_map(EXAMPLE / "map.json").locate(first_frame(name), 0)
    start = scene.c2w[0, :1].double()
    poses = start @ torch.from_numpy(walked(standing, seed))
    free = start @ torch.from_numpy(walked(None, seed))
    assert (clearance(poses[:, :3, 3]) > MARGIN - 1e-6).all()
    assert (clearance(free[:, :3, 3]) < 0).any()  # without walls it goes through them
    assert torch.allclose(bumped(free[None])[0], poses, atol=1e-6)


def test_a_wall_is_slid_along_and_an_image_of_another_place_has_none():
    world = read_map(EXAMPLE / "map.json")
    standing = world.locate(first_frame("image"), 0)
    camera = WalkingCamera(None, walls=standing)
    turned = camera.move(FrameInputs(np.tile([0.0, 0, -1, 0], (20, 1)), (0, 0), None))[-1]
    moved = camera.move(FrameInputs(np.tile([1.0, 0, 0, 0], (200, 1)), (0, 0), None))
    across, along = (np.abs(np.diff(moved[:, axis, 3])) for axis in (0, 2))
    assert ((across == 0) & (along > 0.02)).sum() > 10
    assert turned[0, 2] < -0.5
    assert world.locate(-first_frame("image"), 0) is None
    assert world.locate(torch.rand(3, 96, 160) * 2 - 1, 0) is None


def test_the_crate_is_found_in_its_own_room_only():
    world = read_map(EXAMPLE / "map.json")
    for seed, room in enumerate(world.rooms):
        standing = world.locate(first_frame("image"), seed)
        x, z = standing.facts()["goal"][:2]
        found = [
            standing.is_near_crate(np.array([x + right - 2.4, 0, z + ahead - 1.2]))
            for right, ahead in [(0.5, 0.5), (2, 2), (-0.7, 0)]
        ]
        assert found == [True, False, False], room
        assert (x // world.room, z // world.room) == room


@pytest.fixture
def maze(toy_package):
    """An engine of the random toy with a map in which the toy's first frame faces a wall, and that frame as a start."""
    loaded, world = opened(toy_package), read_map(EXAMPLE / "map.json")
    look = mean_colours((loaded.start.frame.clamp(-1, 1) + 1) * 127.5)
    places = (Place((1.2, -0.9, 4.2), 0.0, look),)
    return replace(loaded.engine(), map=replace(world, places=places, rooms=((0, 0),))), loaded.start


def test_a_walk_stops_at_a_wall_rests_there_and_is_replayed(maze, tmp_path):
    engine, start = maze
    told = []
    with Session(engine, start, folder=tmp_path, fps=0) as session:
        session._notify = lambda *what: told.append(what)
        session.hold(["w", "shift"])
        chunks(session, 5)
        poses = session.walk.store.poses()
        assert 0 < poses[-1, 2, 3] < 0.2  # the wall is 0.6 ahead, less its half thickness and the margin
        assert session.still
        session.hold(["s", "shift"])
        assert not session.still
        chunks(session, 18)
        assert session.walk.store.poses()[-1, 2, 3] < -1
        folder, state = session.walk.store.folder, session.state()
    assert [kind for kind, _ in told] == ["found"]
    with Session.replay(engine, folder, folder=tmp_path / "again", fps=0) as session:
        assert sum(1 for _ in session) > 10
        assert torch.equal(session.state().latent, state.latent)
    with Session(engine, start, folder=tmp_path / "free", fps=0, walls=False) as session:
        session.hold(["w", "shift"])
        chunks(session, 5)
        assert session.walk.store.poses()[-1, 2, 3] > 0.5
        assert not session.still


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"room": 1}', '{"room": 0, "margin": 0, "boxes": [], "goal": 0, "rooms": []}']
)
def test_a_broken_map_is_refused_by_its_name(tmp_path, text):
    (tmp_path / "map.json").write_text(text)
    with pytest.raises(InputError, match="map.json: no map"):
        read_map(tmp_path / "map.json")


def test_a_map_that_is_no_text_is_no_broken_map(tmp_path):
    (tmp_path / "map.json").write_bytes("{}".encode("utf-16"))
    with pytest.raises(InputError) as told:
        read_map(tmp_path / "map.json")
    assert "no map" not in str(told.value)
    assert str(told.value).count("map.json") == 1
