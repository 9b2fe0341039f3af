"""A renderer of houses: rays through an exact pinhole, from crossing to crossing of the walls."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from ...camera.path import DEFAULT_FOV_DEG, lens_from_fov
from ...camera.plucker import scaled_lens
from .rooms import BOXES, COLOURS, FLOORS, PITCH, REACH, THICK, THINGS, Rooms

HEIGHT, WIDTH = 144, 256
LENS = lens_from_fov(DEFAULT_FOV_DEG)  # fx, fy, cx, cy at 832x480, the lens of all pictures here
SAMPLES = 2  # rays of a pixel, each way
CROSSINGS = 7  # the largest number of crossings that a ray passes; everything behind these is as far as the sky
RAYS_AT_ONCE = {"cuda": 32 * 4 * HEIGHT * WIDTH, "cpu": 300_000}  # they bound the memory
TILE, BRICK = 1.2, 0.5  # sides of floor tiles, which bricks and planks are as long as; a brick's height
SKY, GROUND = 0, 1  # surfaces of `trace`; those of BOXES follow

DAY, NIGHT, SNOW, FOG = range(4)
LIGHT = ((1.0, 1.0, 1.0), (0.46, 0.54, 0.82), (0.95, 0.98, 1.05), (0.92, 0.92, 0.92))
HORIZON = ((0.80, 0.88, 0.95), (0.22, 0.26, 0.44), (0.82, 0.84, 0.88), (0.74, 0.76, 0.78))
ZENITH = ((0.30, 0.55, 0.90), (0.05, 0.06, 0.18), (0.62, 0.67, 0.75), (0.66, 0.68, 0.71))
HAZE, CLEAR = (1 / 7, 1 / 6, 1 / 6, 1 / 2.5), 3.0
"""By weather: factors of colours, the sky below and above, the loss with distance beyond CLEAR: far edges are too
fine."""
SUN = F.normalize(torch.tensor([0.5, -0.32, 0.8]), dim=0).tolist()
FACES = torch.tensor([0.80, 0.92, 1.02, 0.70, 1.10])  # the brightness of faces to -x, +x, -z, +z and up
TRIM, DARK, GLASS, TOP = (0.90, 0.88, 0.82), (0.20, 0.17, 0.16), (0.55, 0.75, 0.92), (0.62, 0.60, 0.58)
NIGHT_GLASS, SNOW_TOP = (2.4, 1.9, 0.9), (0.93, 0.95, 0.98)
WALL, FLOOR, THING = 0, 2, 4
ROW_TRIM, ROW_DARK, ROW_GLASS, ROW_TOP = 7, 8, 9, 10
"""Rows of `palette`: two walls, two of the floor, cabinet, crate, rug, and the colours of all houses."""


def render(rooms: Rooms, c2w: Tensor, height: int = HEIGHT, width: int = WIDTH, samples: int = SAMPLES) -> Tensor:
    """Return frames float32 [n, f, 3, height, width], -1 to 1, from poses [n, f, 4, 4]; `rooms` has n or n * f rows."""
    frames = c2w.shape[1]
    rays = camera_rays(height * samples, width * samples).to(c2w.device)
    at_once = max(1, RAYS_AT_ONCE[c2w.device.type] // len(rays))
    count = c2w.shape[0] * frames
    index = torch.arange(count, device=c2w.device) // (count // len(rooms))
    table, flat = palette(rooms), c2w.flatten(0, 1)
    parts = []
    for start in range(0, count, at_once):
        own = index[start : start + at_once]
        colours = shaded(table[own], rooms.weather[own], flat[start : start + at_once], rays)
        parts.append(F.avg_pool2d(colours.unflatten(2, (height * samples, width * samples)), samples) * 2 - 1)
    return torch.cat(parts).unflatten(0, (-1, frames))


def lens_pixels(height: int, width: int) -> Tensor:
    """Return fx, fy, cx, cy [4] in pixels of an image of this size."""
    return torch.from_numpy(scaled_lens(LENS, height, width)).float()


def camera_rays(height: int, width: int) -> Tensor:
    """Return unit directions [height * width, 3] of the pixel centres in camera axes."""
    fx, fy, cx, cy = lens_pixels(height, width)
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    rays = torch.stack([(x - cx) / fx, (y - cy) / fy, torch.ones_like(x)], -1)
    return F.normalize(rays, dim=-1).flatten(0, 1)


def palette(rooms: Rooms) -> Tensor:
    """Return the colours [n, 11, 3] of each house's surfaces."""
    device = rooms.walls.device
    known, floors, things = (torch.tensor(values, device=device) for values in (list(COLOURS.values()), FLOORS, THINGS))
    snow, dark = rooms.weather == SNOW, rooms.weather == NIGHT
    rest = torch.tensor([TRIM, DARK, GLASS, TOP], device=device).repeat(len(rooms), 1, 1)
    rest[dark, 2] = torch.tensor(NIGHT_GLASS, device=device)
    rest[snow, 3] = torch.tensor(SNOW_TOP, device=device)
    floor = floors[rooms.walls[:, 0] % len(FLOORS)]
    white = torch.tensor([[0.93, 0.95, 0.98], [0.80, 0.84, 0.90]], device=device)
    floor = torch.where(snow[:, None, None], white, floor)
    return torch.cat([known[rooms.walls], floor, things.expand(len(rooms), -1, -1), rest], 1)


def trace(origin: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """Return distance and surface [n, rays] of each ray [n, rays, 3] from origins [n, 3]; surfaces from 2 on are
    BOXES."""
    far = 1e3
    safe = torch.where(direction.abs() < 1e-6, torch.full_like(direction, 1e-6), direction)
    inverse_x, inverse_y, inverse_z = (1 / safe).unbind(-1)
    start_x, start_y, start_z = (part[:, None] for part in origin.unbind(-1))
    wide_x, wide_z = inverse_x.abs(), inverse_z.abs()
    to_x, to_z = ((at / PITCH).round() * PITCH - at for at in (start_x, start_z))
    to_x, to_z = to_x * inverse_x, to_z * inverse_z
    ground = -start_y * inverse_y
    levels = {height: (-height - start_y) * inverse_y for *_, height in BOXES}
    near_y = {height: torch.minimum(ground, level) for height, level in levels.items()}
    far_y = {height: torch.maximum(ground, level) for height, level in levels.items()}
    distance = torch.where(ground > 0, ground, torch.full_like(ground, far)).clamp(max=far)
    surface = (distance < far).to(torch.int8)
    for _ in range(CROSSINGS):
        for index, (at_x, at_z, half_x, half_z, height) in enumerate(BOXES):
            mid_x, mid_z = to_x + at_x * inverse_x, to_z + at_z * inverse_z
            size_x, size_z = half_x * wide_x, half_z * wide_z
            enter = torch.maximum(torch.maximum(mid_x - size_x, mid_z - size_z), near_y[height])
            leave = torch.minimum(torch.minimum(mid_x + size_x, mid_z + size_z), far_y[height])
            hit = (enter > 0) & (enter < leave) & (enter < distance)
            distance = torch.where(hit, enter, distance)
            surface = torch.where(hit, torch.full_like(surface, 2 + index), surface)
        along_x = to_x + PITCH / 2 * wide_x < to_z + PITCH / 2 * wide_z
        to_x = torch.where(along_x, to_x + PITCH * wide_x, to_x)
        to_z = torch.where(along_x, to_z, to_z + PITCH * wide_z)
    return distance, surface


def shaded(table: Tensor, weather: Tensor, c2w: Tensor, rays: Tensor) -> Tensor:
    """Return the colours [n, 3, rays], 0 to 1, that rays [rays, 3] of cameras c2w [n, 4, 4] hit."""
    direction, origin = rays @ c2w[:, :3, :3].mT, c2w[:, :3, 3]
    distance, surface = trace(origin, direction)
    x, y, z = (origin[:, None] + direction * distance[..., None]).unbind(-1)
    local_x, local_z = (value - PITCH * (value / PITCH).round() for value in (x, z))
    row, tone, face = _ground(x, z, local_x, local_z)
    for index, box in enumerate(BOXES):
        own = surface == 2 + index
        part = _box(index, box, (x, -y, z), (local_x, local_z), distance)
        row, tone, face = (torch.where(own, new, old) for new, old in zip(part, (row, tone, face), strict=True))
    light = torch.tensor(LIGHT, device=rays.device)[weather]
    bright = tone * FACES.to(rays.device)[face]
    haze = torch.exp(-(distance - CLEAR).clamp(min=0) * torch.tensor(HAZE, device=rays.device)[weather][:, None])
    far, colours = torch.tensor(HORIZON, device=rays.device)[weather], []
    for channel, sky in enumerate(_sky(direction, weather)):
        near = table[..., channel].gather(1, row) * bright * light[:, channel, None]
        colours.append(torch.where(surface == SKY, sky, torch.lerp(far[:, channel, None], near, haze)))
    return torch.stack(colours, 1).clamp(0, 1)


def _ground(x: Tensor, z: Tensor, local_x: Tensor, local_z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the row, tone and face of the floor: tiles with a rug in each room, darker near walls."""
    tile = ((x / TILE).floor() + (z / TILE).floor()).long() % 2
    from_x, from_z = PITCH / 2 - local_x.abs(), PITCH / 2 - local_z.abs()
    rug = torch.maximum(from_x / 0.95, from_z / 0.7)
    row = torch.where(rug < 1, torch.full_like(tile, THING + 2), FLOOR + tile)
    tone = torch.where((rug > 0.75) & (rug < 0.88), torch.full_like(rug, 1.35), torch.ones_like(rug))
    ax, az = local_x.abs(), local_z.abs()
    wall = torch.minimum(torch.maximum(ax - REACH, az - THICK), torch.maximum(ax - THICK, az - REACH)).clamp(min=0)
    return row, tone * (0.9 - 0.35 * torch.exp(-wall / 0.22)), torch.full_like(row, 4)


def _box(
    index: int,
    box: tuple[float, ...],
    point: tuple[Tensor, Tensor, Tensor],
    local: tuple[Tensor, Tensor],
    distance: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return row, tone and face of points (x, height, z) on a box; `local`: x and z from the crossing."""
    x, height, z = point
    at_x, at_z, half_x, half_z, top = box
    from_x, from_z = local[0] - at_x, local[1] - at_z
    out_x, out_z, out_y = from_x.abs() - half_x, from_z.abs() - half_z, height - top
    upward = (out_y > out_x) & (out_y > out_z)
    on_x = out_x > out_z
    face = torch.where(on_x, (from_x > 0).long(), 2 + (from_z > 0).long())
    face = torch.where(upward, torch.full_like(face, 4), face)
    if index < 2:
        row, tone = _wall((x, height, z), (from_x, from_z), on_x, distance)
        row = torch.where(upward, torch.full_like(row, ROW_TOP), row)
        return row, torch.where(upward, torch.ones_like(tone), tone), face
    side = torch.where(on_x, from_z, from_x).abs() / half_x
    up = torch.where(upward, torch.maximum(from_x.abs(), from_z.abs()) / half_x, (2 * height / top - 1).abs())
    rim = torch.maximum(torch.where(upward, up, side), up)
    tone = torch.where(rim > 0.86, torch.full_like(rim, 0.62), torch.full_like(rim, 1.05))
    if index == 2:
        handle = ~upward & (side < 0.1)
        tone = torch.where(handle, torch.full_like(tone, 0.62), tone)
    else:
        cross = ~upward & ((side - up).abs() < 0.16)
        tone = torch.where(cross, torch.full_like(tone, 0.72), tone)
    return torch.full_like(face, THING + index - 2), tone, face


def _wall(
    point: tuple[Tensor, Tensor, Tensor], local: tuple[Tensor, Tensor], on_x: Tensor, distance: Tensor
) -> tuple[Tensor, Tensor]:
    """Return row and tone of points on a wall: brick or planks, pictures or windows, and white doorposts."""
    x, height, z = point
    aside_x, aside_z = torch.where(on_x, 0.3 * local[0].sign(), 0), torch.where(on_x, 0, 0.3 * local[1].sign())
    room = ((x + aside_x) / PITCH).floor() + ((z + aside_z) / PITCH).floor()
    along, across = torch.where(on_x, z, x), torch.where(on_x, local[1], local[0]).abs()
    dark = 1 - 0.30 * torch.exp(-height / 0.2)
    tone = dark * (1 + torch.exp(-((distance / 7) ** 2)) * _stones(along, height, on_x))
    tone = torch.where((height < 0.12) | (height > 1.92), torch.full_like(tone, 0.55), tone)
    row, hung = _hung(WALL + room.long() % 2, across, height, on_x)
    post = across > (REACH - 0.11)
    row = torch.where(post, torch.full_like(row, ROW_TRIM), row)
    tone = torch.where(hung, torch.ones_like(tone), tone)
    return row, torch.where(post, 1 - 0.25 * torch.exp(-height / 0.2), tone)


def _stones(along: Tensor, height: Tensor, brick: Tensor) -> Tensor:
    """Return the relative brightness of a wall: bricks with mortar, or planks."""
    layer = (height / BRICK).floor()
    shifted = along / TILE + 0.5 * (layer % 2)
    stone = 0.14 * (((shifted.floor() * 3 + layer * 5) % 4) / 3 - 0.5)
    mortar = ((height / BRICK) % 1 < 0.12) | (shifted % 1 < 0.05)
    plank = 0.05 * ((along / TILE).floor() % 2)
    planks = torch.where((along / TILE) % 1 < 0.05, torch.full_like(stone, -0.28), plank)
    return torch.where(brick, torch.where(mortar, torch.full_like(stone, -0.30), stone), planks)


def _hung(row: Tensor, across: Tensor, height: Tensor, on_x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of a wall with pictures (along x) or windows (along z), and the mask of these."""
    inside_u, inside_v = (across - 0.98).abs(), (height - 1.2).abs()
    edge = torch.maximum(inside_u / torch.where(on_x, 0.26, 0.34), inside_v / torch.where(on_x, 0.24, 0.36))
    bars = ~on_x & ((inside_u < 0.04) | (inside_v < 0.04))
    shown = torch.where(on_x, THING + (inside_u + inside_v < 0.16).long(), torch.full_like(row, ROW_GLASS))
    framed = torch.where((edge > 0.8) | bars, torch.where(on_x, ROW_DARK, ROW_TRIM), shown)
    return torch.where(edge < 1, framed, row), edge < 1


def _sky(direction: Tensor, weather: Tensor) -> list[Tensor]:
    """Return the sky's colours [n, 3, rays]: a gradient, sun or moon, and clouds, which show the direction of view."""
    x, y, z = direction.unbind(-1)
    horizon, zenith = (torch.tensor(colours, device=x.device)[weather] for colours in (HORIZON, ZENITH))
    above = (-y).clamp(0, 1)
    share = (1.6 * above).clamp(max=1).sqrt()
    angle, high = torch.atan2(x, z), torch.atan2(-y, (x * x + z * z).sqrt())
    wave = torch.sin(3 * angle) + torch.sin(5 * angle + 1) - ((high - 0.42) / 0.13) ** 2
    clear = (weather < SNOW)[:, None]
    cloud = (1 + (wave - 0.6) * 8).clamp(0, 1) * 0.75 * clear
    towards = SUN[0] * x + SUN[1] * y + SUN[2] * z
    disc = (1 + (towards - math.cos(0.09)) * 900).clamp(0, 1) * clear
    white = torch.where((weather == NIGHT)[:, None], 0.22, 1.0)
    glow = torch.where((weather == NIGHT)[:, None], 0.95, 1.0)
    made = []
    for channel in range(3):
        plain = horizon[:, channel, None] + (zenith - horizon)[:, channel, None] * share
        plain = plain + (white - plain) * cloud
        made.append(plain + (glow * (1.0, 0.97, 0.80)[channel] - plain) * disc)
    return made
