"""The maze that the next toy is to know: its houses, walks in it, and pictures."""

import pytest
import torch
from lingbot_world.camera import check_poses
from lingbot_world.camera.moves.presets import preset_path
from lingbot_world.tools.toy import render as drawing
from lingbot_world.tools.toy.__main__ import take_shipped
from lingbot_world.tools.toy.measure import decibels
from lingbot_world.tools.toy.parameters import load_weights
from lingbot_world.tools.toy.paths import STEP
from lingbot_world.tools.toy.pool import latents
from lingbot_world.tools.toy.render import CROSSINGS, SKY, camera_rays, lens_pixels, render, trace
from lingbot_world.tools.toy.rooms import (
    BOXES,
    CAPTIONS,
    COLOURS,
    EYE,
    MARGIN,
    PITCH,
    TRIES,
    WEATHERS,
    bumped,
    clearance,
    random_rooms,
    random_scenes,
)
from lingbot_world.tools.toy.settings import Sizes
from lingbot_world.tools.toy.walks import MOST_PITCH, TURN, key_walks, random_walks
from lingbot_world.vae import VideoDecoder, load_vae

FRAMES = 41
SCENES = random_scenes(24, 11, FRAMES, random_walks)


def forward(start, steps):
    """Poses [1, steps + 1, 4, 4] of a camera at a place that goes ahead, a twentieth of a unit each frame."""
    poses = torch.eye(4).repeat(1, steps + 1, 1, 1)
    poses[0, :, :3, 3] = torch.tensor(start)
    poses[0, :, 2, 3] += 0.05 * torch.arange(steps + 1)
    return poses


def test_a_walk_begins_at_the_identity_is_rigid_and_never_faster_than_a_model_knows():
    walks = key_walks(20, torch.Generator().manual_seed(2), 81)
    torch.testing.assert_close(walks[:, 0], torch.eye(4).expand(20, 4, 4))
    for walk in walks[:5]:
        check_poses(walk.numpy())
    steps = (walks[:, 4:, :3, 3] - walks[:, :-4, :3, 3]).norm(dim=-1)
    assert steps.max() < STEP * 1.0001
    assert steps.max() > STEP * 0.99
    assert (steps[:, ::4] < 1e-6).any(), "somebody stands"
    pitch = torch.asin(-walks[:, :, 1, 2])
    assert 0.5 * MOST_PITCH < pitch.abs().max() <= MOST_PITCH + 1e-4
    turns = torch.acos((walks[:, 1:, :3, 2] * walks[:, :-1, :3, 2]).sum(-1).clamp(max=1)).max()
    assert 1.5 * TURN < turns < 5 * TURN


def test_no_camera_is_in_a_wall_or_in_furniture():
    assert clearance(SCENES.c2w[..., :3, 3]).min() > MARGIN - 1e-4
    careless = random_scenes(24, 12, 81, random_walks, 1)
    begun = clearance(careless.c2w[:, 0, :3, 3]) > MARGIN
    assert clearance(careless.c2w[begun, :, :3, 3]).min() > MARGIN - 1e-4
    stopped = (careless.c2w - careless.asked).abs().amax((1, 2, 3)) > 0.05
    assert stopped.any()
    torch.testing.assert_close(careless.c2w[..., :3, :3], careless.asked[..., :3, :3])


def test_a_wall_stops_who_walks_into_it_and_lets_slide_along_who_comes_aslant():
    gone = bumped(forward((1.4, -EYE, PITCH / 2), 60))[0, :, :3, 3]
    wall = PITCH - BOXES[0][3] - MARGIN
    assert wall - 0.051 < gone[-1, 2] <= wall
    aslant = forward((1.4, -EYE, PITCH / 2), 60)
    aslant[0, :, 0, 3] += 0.02 * torch.arange(61)
    slid = bumped(aslant)[0, :, :3, 3]
    assert slid[-1, 0] > 2.0
    through = bumped(forward((PITCH / 2, -EYE, PITCH / 2), 60))[0, :, :3, 3]
    assert through[-1, 2] == pytest.approx(PITCH / 2 + 3.0, abs=1e-4), "the door"


def test_presets_find_room_enough():
    for move, amount in (("dolly_in", 1.6), ("truck_left", 1.6), ("pedestal_up", 1.6), ("pedestal_down", 1.6)):
        path = torch.tensor(preset_path(move, frames=33, amount=amount).c2w).float()
        scenes = random_scenes(8, 3, 33, lambda count, _random, _frames, path=path: path.repeat(count, 1, 1, 1), TRIES)
        torch.testing.assert_close(scenes.c2w, scenes.asked)


def test_a_seed_gives_the_same_scenes_and_captions_name_what_is_there():
    again = random_scenes(24, 11, FRAMES, random_walks)
    assert torch.equal(again.c2w, SCENES.c2w)
    assert again.rooms.captions() == SCENES.rooms.captions()
    assert random_scenes(24, 13, FRAMES, random_walks).rooms.captions() != again.rooms.captions()
    rooms = random_rooms(200, torch.Generator().manual_seed(1))
    assert (rooms.walls[:, 0] != rooms.walls[:, 1]).all()
    for number, caption in enumerate(rooms.captions()):
        first, second = (list(COLOURS)[index] for index in rooms.walls[number].tolist())
        assert caption == f"a maze with {first} and {second} walls {WEATHERS[rooms.weather[number]]}"
        assert caption == CAPTIONS[rooms.kinds()[number]]
    changed = rooms.changed(torch.Generator().manual_seed(2))
    weather, walls = changed.weather != rooms.weather, (changed.walls != rooms.walls).any(1)
    assert not (weather & walls).any()
    assert weather.any()
    assert walls.any()


def test_a_change_of_weather_is_seen_at_once():
    scenes = random_scenes(1, 5, 5, random_walks)
    rooms = scenes.rooms[torch.zeros(len(WEATHERS), dtype=torch.long)]
    rooms.weather[:] = torch.arange(len(WEATHERS))
    pictures = render(rooms, scenes.c2w[:, :1].expand(len(WEATHERS), -1, -1, -1), 32, 48, 1)[:, 0]
    away = (pictures[:, None] - pictures[None]).abs().mean((2, 3, 4)) + 10 * torch.eye(len(WEATHERS))
    assert away.min() > 0.1


def test_the_sky_does_not_shine_through_walls(monkeypatch):
    start = forward((1.4, -EYE, PITCH / 2), 0)
    rooms = random_rooms(1, torch.Generator().manual_seed(1))
    rooms.weather[:] = 1
    before = render(rooms, start, 48, 80, samples=1)[0, 0]
    monkeypatch.setattr(drawing, "SUN", (-0.4, -0.3, 0.86))
    after = render(rooms, start, 48, 80, samples=1)[0, 0]
    seen = trace(start[0, :, :3, 3], camera_rays(48, 80)[None])[1].view(48, 80) != SKY
    assert seen.float().mean() > 0.5
    assert torch.equal(before[:, seen], after[:, seen])
    assert not torch.equal(before, after)


def test_pictures_are_the_same_world_from_two_sides():
    """What a pixel shows in one frame lies, by depth and poses, at a place in the other frame of the same colour."""
    path = torch.tensor(preset_path("truck_right", frames=9, amount=0.3).c2w[None]).float()
    scenes = random_scenes(1, 3, 9, lambda *_: path)
    pair = scenes.c2w[:, [0, 8]]
    pictures, rays = render(scenes.rooms, pair, 48, 80, samples=1)[0], camera_rays(48, 80)
    distance, _ = trace(pair[0, :, :3, 3], rays @ pair[0, :, :3, :3].mT)
    depth = (distance * rays[:, 2]).view(-1, 48, 80)
    world = (rays / rays[:, 2:] * depth[0].flatten()[:, None]) @ pair[0, 0, :3, :3].T + pair[0, 0, :3, 3]
    seen = (world - pair[0, 1, :3, 3]) @ pair[0, 1, :3, :3]
    fx, fy, cx, cy = lens_pixels(48, 80)
    place = torch.stack([seen[:, 0] / seen[:, 2] * fx + cx, seen[:, 1] / seen[:, 2] * fy + cy], -1)
    grid = (place / torch.tensor([40.0, 24.0]) - 1).view(1, 48, 80, 2)
    warped = torch.nn.functional.grid_sample(pictures[1:], grid, align_corners=False)[0]
    inside = (grid.abs() < 0.98).all(-1)[0]
    error = (warped - pictures[0]).abs().mean(0)[inside]
    unmoved = (pictures[1] - pictures[0]).abs().mean(0)[inside]
    assert error.mean() < unmoved.mean() / 2


def test_rays_meet_what_is_nearest():
    x, z, half, _, height = BOXES[3]
    down, ahead, up = (torch.tensor([[direction]]) for direction in ([0.0, 1, 0], [0.0, 0, 1], [0.0, -1, 0]))
    above = torch.tensor([[x, -height - 0.2, z]])
    distance, surface = trace(above, down)
    assert (distance.item(), surface.item()) == (pytest.approx(0.2, abs=1e-5), 5)
    distance, surface = trace(torch.tensor([[x, -height / 2, z - half - 0.1]]), ahead)
    assert (distance.item(), surface.item()) == (pytest.approx(0.1, abs=1e-5), 5)
    assert trace(above, up)[1].item() == SKY
    distance, surface = trace(torch.tensor([[1.0, -EYE, PITCH / 2]]), ahead)
    assert (distance.item(), surface.item()) == (pytest.approx(PITCH / 2 - BOXES[0][3], abs=1e-5), 2)
    distance, surface = trace(torch.tensor([[PITCH / 2, -EYE, PITCH / 2]]), ahead)
    assert distance.item() > CROSSINGS * PITCH / 2, "through all doors"


def test_the_shipped_vae_restores_what_it_has_not_seen_and_is_not_put_over_another(tmp_path):
    """Of 32 walks of 33 frames first frames were restored to 34.2 dB and later ones to 30.3."""
    take_shipped(tmp_path, denoiser=False)
    weights = load_weights(tmp_path / "vae.pt")
    first, later, vae = [], [], load_vae(weights)
    for seed in (987_654_321, 987_654_322):
        scene = random_scenes(1, seed, 9, random_walks)
        pictures = render(scene.rooms, scene.c2w)
        latent = latents(weights, pictures, Sizes())
        restored = VideoDecoder(vae, *latent.shape[-2:]).decode(latent).permute(0, 3, 1, 2) / 127.5 - 1
        first.append(decibels(restored[0], pictures[0, 0]))
        later.append(decibels(restored[1:], pictures[0, 1:]))
    assert sum(first) / len(first) > 32, first  # single walks have 32.1 to 37.3
    assert sum(later) / len(later) > 26.5, later  # and 26.8 to 34.1
    (tmp_path / "vae.pt").write_bytes(b"mine")
    take_shipped(tmp_path, denoiser=False)
    assert (tmp_path / "vae.pt").read_bytes() == b"mine"
