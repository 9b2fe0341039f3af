"""The little world that the toy models are trained in: rooms, paths and pictures."""

import numpy as np
import pytest
import torch
from lingbot_world.camera import check_poses, longest_step
from lingbot_world.camera.moves.presets import preset_path
from lingbot_world.tools.toyworld.paths import FRAMES, STEP, random_paths, rotations
from lingbot_world.tools.toyworld.render import camera_rays, depths, lens_pixels, render, trace
from lingbot_world.tools.toyworld.rooms import MARGIN, random_scenes, scenes_around

PATHS = random_paths(200, torch.Generator().manual_seed(5))
SCENES = random_scenes(64, 11)


def test_paths_are_rigid_begin_at_the_identity_and_have_one_speed():
    for path in PATHS[:40]:
        check_poses(path.numpy())
        assert longest_step(path.numpy(), frames=FRAMES) == pytest.approx(STEP, abs=1e-5) or not path[:, :3, 3].any()
    torch.testing.assert_close(PATHS[:, 0], torch.eye(4).expand(200, 4, 4))


def test_a_path_of_each_single_move_is_among_them():
    last = PATHS[:, -1]
    turned = (last[:, :3, :3] - torch.eye(3)).abs().amax((1, 2)) > 1e-3
    moved = last[:, :3, 3].abs() > 1e-3
    assert (~turned & ~moved.any(1)).any(), "still"
    for axis in range(3):
        only = ~turned & (moved.sum(1) == 1) & moved[:, axis]
        assert {sign.item() for sign in last[only, axis, 3].sign()} == {-1.0, 1.0}
        turns = torch.stack([last[:, (axis + 2) % 3, (axis + 1) % 3], last[:, (axis + 1) % 3, axis]], 1)
        spins = turned & ~moved.any(1) & (turns[:, 0].abs() > 1e-3) & (turns[:, 1].abs() < 1e-6)
        assert {sign.item() for sign in turns[spins, 0].sign()} == {-1.0, 1.0}


def test_the_rotations_are_those_of_the_presets():
    path = preset_path("pan_right", frames=FRAMES, amount=20.0).c2w
    mine = rotations(torch.tensor([0, np.deg2rad(20.0), 0], dtype=torch.float64))
    np.testing.assert_allclose(mine.numpy(), path[-1, :3, :3], atol=1e-9)


def test_no_path_comes_near_a_wall_or_a_box():
    rooms, centres = SCENES.rooms, SCENES.c2w[:, :, :3, 3]
    to_wall = torch.minimum(centres - rooms.lo[:, None], rooms.hi[:, None] - centres)
    assert to_wall.min() > MARGIN - 1e-4
    for box in range(3):
        away = torch.maximum(rooms.box_lo[:, None, box] - centres, centres - rooms.box_hi[:, None, box])
        assert (away[..., [0, 2]].amax(-1) > MARGIN - 1e-4).all()


def test_a_seed_gives_the_same_scenes_and_the_caption_counts_the_boxes():
    again = random_scenes(64, 11)
    assert torch.equal(again.c2w, SCENES.c2w)
    assert torch.equal(again.rooms.colours, SCENES.rooms.colours)
    assert not torch.equal(random_scenes(64, 12).rooms.colours, SCENES.rooms.colours)
    captions = SCENES.rooms.captions()
    words = ("no boxes", "one box", "two boxes", "three boxes")
    assert {word for word in words for caption in captions if word in caption} == set(words)
    part = SCENES.rooms[3:5]
    assert part.captions() == captions[3:5]


def test_pictures_are_the_same_world_from_two_sides():
    """What a pixel shows in one frame lies, by depth and poses, at a place in the other frame of the same colour."""
    scenes = scenes_around(
        torch.tensor(preset_path("truck_right", frames=9, amount=0.3).c2w[None]).float(),
        torch.Generator().manual_seed(3),
    )
    pair = scenes.c2w[:, [0, 8]]
    pictures, depth = render(scenes.rooms, pair, 48, 80, samples=1)[0], depths(scenes.rooms, pair, 48, 80)[0]
    rays = camera_rays(48, 80)
    points = rays / rays[:, 2:] * depth[0].flatten()[:, None]
    world = points @ pair[0, 0, :3, :3].T + pair[0, 0, :3, 3]
    seen = (world - pair[0, 1, :3, 3]) @ pair[0, 1, :3, :3]
    fx, fy, cx, cy = lens_pixels(48, 80)
    place = torch.stack([seen[:, 0] / seen[:, 2] * fx + cx, seen[:, 1] / seen[:, 2] * fy + cy], -1)
    grid = (place / torch.tensor([40.0, 24.0]) - 1).view(1, 48, 80, 2)
    warped = torch.nn.functional.grid_sample(pictures[1:], grid, align_corners=False)[0]
    inside = (grid.abs() < 0.98).all(-1)[0]
    error = (warped - pictures[0]).abs().mean(0)[inside]
    unmoved = (pictures[1] - pictures[0]).abs().mean(0)[inside]
    assert error.median() < 0.005
    assert error.median() < unmoved.median() / 3


def test_rays_meet_the_nearest_box():
    rooms = SCENES.rooms[SCENES.rooms.boxes > 0][:1]
    middle = (rooms.box_lo[0, 0] + rooms.box_hi[0, 0]) / 2
    above = torch.stack([middle[0], rooms.box_lo[0, 0, 1] - 0.2, middle[2]])
    distance, surface = trace(rooms, above[None, None], torch.tensor([[[0.0, 1.0, 0.0]]]))
    assert surface.item() == 6
    assert distance.item() == pytest.approx(0.2, abs=1e-5)
