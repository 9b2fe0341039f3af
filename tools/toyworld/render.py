"""Rooms to pictures: rays through an exact pinhole, walls and boxes with soft textures, soft shade and sky."""

import torch
from torch import Tensor
from torch.nn import functional as F

from ...camera.path import DEFAULT_FOV_DEG, lens_from_fov
from ...camera.plucker import scaled_intrinsics
from .rooms import BOXES, Rooms

HEIGHT, WIDTH = 96, 160
SAMPLES = 2
"""Rays of a pixel, each way."""
NEAR = 0.02
GREY, TINT = (0.30, 0.55, 0.15), (0.30, 0.40, 0.66)
"""Of `night`: the share of each colour in grey, and of what each is left."""
FRAMES_AT_ONCE = {"cuda": 132, "cpu": 4}
"""Frames that are traced at once; they bound the memory."""

LENS = lens_from_fov(DEFAULT_FOV_DEG)
"""fx, fy, cx, cy at 832x480, the lens of all pictures here."""


def render(rooms: Rooms, c2w: Tensor, height: int = HEIGHT, width: int = WIDTH, samples: int = SAMPLES) -> Tensor:
    """Pictures float32 [n, f, 3, height, width], -1 to 1, of each room from its poses c2w [n, f, 4, 4], on their
    device."""
    frames = c2w.shape[1]
    rays = camera_rays(height * samples, width * samples).to(c2w.device)
    at_once = FRAMES_AT_ONCE[c2w.device.type]
    index = torch.arange(len(rooms), device=c2w.device).repeat_interleave(frames)
    flat = c2w.flatten(0, 1)
    parts = [
        _picture(rooms[index[start : start + at_once]], flat[start : start + at_once], rays, height, width, samples)
        for start in range(0, len(flat), at_once)
    ]
    return torch.cat(parts).unflatten(0, (-1, frames))


def night(pictures: Tensor, share: float = 1.0) -> Tensor:
    """Pictures [..., 3, height, width], -1 to 1, at night: 40 % of the colour goes to grey, then all of it is darkened,
    red most and blue least. `share` 0 leaves the day, 0.5 is half-way between both."""
    colours = (pictures + 1) / 2
    grey = (colours * torch.tensor(GREY, device=colours.device)[:, None, None]).sum(-3, keepdim=True)
    dark = (0.6 * colours + 0.4 * grey) * torch.tensor(TINT, device=colours.device)[:, None, None]
    return torch.lerp(colours, dark, share) * 2 - 1


def depths(rooms: Rooms, c2w: Tensor, height: int = HEIGHT, width: int = WIDTH) -> Tensor:
    """The distance along z [n, f, height, width] from each pose to what each pixel's centre shows; sky is as far as
    the ceiling would be. For the flow between two frames."""
    rays, frames = camera_rays(height, width).to(c2w.device), c2w.shape[1]
    index = torch.arange(len(rooms), device=c2w.device).repeat_interleave(frames)
    flat = c2w.flatten(0, 1)
    directions = rays @ flat[:, :3, :3].transpose(1, 2)
    distance, _ = trace(rooms[index], flat[:, None, :3, 3].expand_as(directions), directions)
    return (distance * rays[:, 2]).view(-1, frames, height, width)


def lens_pixels(height: int, width: int) -> Tensor:
    """fx, fy, cx, cy [4] in pixels of a picture of this size, as the engine scales them."""
    return torch.from_numpy(scaled_intrinsics(LENS[None], height, width)).float()


def camera_rays(height: int, width: int) -> Tensor:
    """Unit directions [height * width, 3] of the pixel centres in camera axes."""
    fx, fy, cx, cy = lens_pixels(height, width)
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    rays = torch.stack([(x - cx) / fx, (y - cy) / fy, torch.ones_like(x)], -1)
    return F.normalize(rays, dim=-1).flatten(0, 1)


def trace(rooms: Rooms, origin: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """The distance [n, rays] to what each ray meets, and which surface that is: 2 * axis + (1 on the far side) for the
    room's six, 6 and on for boxes."""
    inverse = 1 / torch.where(direction.abs() < 1e-6, torch.full_like(direction, 1e-6), direction)
    ends = ((corner[:, None] - origin) * inverse for corner in (rooms.lo, rooms.hi))
    distance, axis = torch.maximum(*ends).min(-1)
    surface = 2 * axis + (direction.gather(-1, axis[..., None])[..., 0] > 0)
    for box in range(BOXES):
        sides = [(corner[:, box, None] - origin) * inverse for corner in (rooms.box_lo, rooms.box_hi)]
        enter, leave = torch.minimum(*sides).amax(-1), torch.maximum(*sides).amin(-1)
        hit = (enter > NEAR) & (enter < leave) & (enter < distance)
        hit &= (rooms.box_lo[:, box, 0] < rooms.box_hi[:, box, 0])[:, None]
        distance = torch.where(hit, enter, distance)
        surface = torch.where(hit, torch.full_like(surface, 6 + box), surface)
    return distance, surface


def _picture(rooms: Rooms, c2w: Tensor, rays: Tensor, height: int, width: int, samples: int) -> Tensor:
    direction = rays @ c2w[:, :3, :3].transpose(1, 2)
    origin = c2w[:, None, :3, 3].expand_as(direction)
    distance, surface = trace(rooms, origin, direction)
    point = origin + direction * distance[..., None]
    colour = _albedo(rooms, point, surface) * _shade(rooms, point, surface)[..., None]
    outside = (surface == 2) & rooms.open[:, None]
    colour = torch.where(outside[..., None], _sky(rooms, direction), colour).clamp(0, 1)
    picture = colour.transpose(1, 2).unflatten(2, (height * samples, width * samples))
    return F.avg_pool2d(picture, samples) * 2 - 1


def _albedo(rooms: Rooms, point: Tensor, surface: Tensor) -> Tensor:
    """Colours [n, rays, 3] without light: two colours of the surface mixed by smooth waves."""
    phases = _of_surface(rooms.phases, surface)
    waves = torch.sin(point @ rooms.waves.transpose(1, 2) + phases)
    half = waves.shape[-1] // 2
    mix = torch.sigmoid(2 * waves[..., :half].sum(-1, keepdim=True))
    colours = _of_surface(rooms.colours.flatten(2), surface)
    mixed = colours[..., :3] * mix + colours[..., 3:] * (1 - mix)
    return mixed * (1 + 0.07 * waves[..., half:].sum(-1, keepdim=True))


def _shade(rooms: Rooms, point: Tensor, surface: Tensor) -> Tensor:
    """Brightness [n, rays]: by direction, darker towards corners and where boxes stand."""
    to_wall = torch.minimum(point - rooms.lo[:, None], rooms.hi[:, None] - point).clamp(min=0)
    own = F.one_hot(surface.div(2, rounding_mode="floor").clamp(max=3), 4)[..., :3].bool()
    corners = (1 - 0.30 * torch.exp(-to_wall / 0.30)).masked_fill(own, 1).prod(-1)
    shade = corners * _box_shadows(rooms, point)
    return shade * rooms.light.gather(1, _facing(rooms, point, surface))


def _facing(rooms: Rooms, point: Tensor, surface: Tensor) -> Tensor:
    """Where each surface faces [n, rays]: 2 * axis + (1 towards +). A room's walls face inward, boxes outward."""
    facing = surface ^ 1
    for box in range(BOXES):
        below = (point - rooms.box_lo[:, box, None]).abs()
        above = (point - rooms.box_hi[:, box, None]).abs()
        side = torch.stack([below, above], -1).flatten(2).argmin(-1)
        facing = torch.where(surface == 6 + box, side, facing)
    return facing


def _box_shadows(rooms: Rooms, point: Tensor) -> Tensor:
    """Soft dark rims [n, rays] on the floor and the walls near boxes; a box itself is darker below."""
    shadow = torch.ones_like(point[..., 0])
    for box in range(BOXES):
        lo, hi = rooms.box_lo[:, box, None], rooms.box_hi[:, box, None]
        away = torch.maximum(lo - point, point - hi).clamp(min=0).norm(dim=-1)
        shadow = shadow * (1 - 0.30 * torch.exp(-away / 0.22) * (away > 1e-4))
    return shadow


def _sky(rooms: Rooms, direction: Tensor) -> Tensor:
    """Colours [n, rays, 3]: pale at the horizon, bluer above, with faint clouds."""
    height = (-direction[..., 1:2]).clamp(0, 1)
    waves = torch.sin(direction @ rooms.waves[:, :3].transpose(1, 2) + rooms.phases[:, 2, None, :3])
    share = (height.sqrt() + 0.06 * waves.sum(-1, keepdim=True)).clamp(0, 1)
    return rooms.sky[:, None, 0] * (1 - share) + rooms.sky[:, None, 1] * share


def _of_surface(table: Tensor, surface: Tensor) -> Tensor:
    """The rows [n, rays, k] of a table [n, surfaces, k] for each ray's surface."""
    return table.gather(1, surface[..., None].expand(-1, -1, table.shape[2]))
