"""How pictures move: an estimate from two pictures, and the truth from the renderer's depths and poses."""

import torch
from lingbot_world.tools.toyworld.render import camera_rays, depths, lens_pixels
from torch.nn import functional as F

WINDOW, ROUNDS, LEVELS = 9, 4, 3


def estimated_flow(before, after):
    """Pixels [2, h, w] (right, down) by which `before` [3, h, w] moves to become `after`: Lucas and Kanade's way, from
    coarse to fine."""
    pyramid = [(before.mean(0, keepdim=True)[None], after.mean(0, keepdim=True)[None])]
    for _ in range(LEVELS - 1):
        pyramid.append(tuple(F.avg_pool2d(picture, 2) for picture in pyramid[-1]))
    flow = torch.zeros(1, 2, *pyramid[-1][0].shape[-2:])
    for one, other in reversed(pyramid):
        if flow.shape[-2:] != one.shape[-2:]:
            flow = 2 * F.interpolate(flow, one.shape[-2:], mode="bilinear", align_corners=False)
        for _ in range(ROUNDS):
            flow = flow + _step(one, _moved_back(other, flow))
    return flow[0]


def true_flow(rooms, first, second, height, width):
    """The same for a room seen from two poses [4, 4], and where [h, w] the point is in the second picture too."""
    depth = depths(rooms, first[None, None], height, width)[0, 0]
    rays = camera_rays(height, width)
    points = rays / rays[:, 2:] * depth.flatten()[:, None]
    world = points @ first[:3, :3].T + first[:3, 3]
    seen = (world - second[:3, 3]) @ second[:3, :3]
    fx, fy, cx, cy = lens_pixels(height, width)
    place = torch.stack([seen[:, 0] / seen[:, 2] * fx + cx, seen[:, 1] / seen[:, 2] * fy + cy])
    inside = (place[0] > 1) & (place[0] < width - 1) & (place[1] > 1) & (place[1] < height - 1) & (seen[:, 2] > 0.1)
    return place.view(2, height, width) - _pixels(height, width), inside.view(height, width)


def agreement(video, rooms, poses, pairs):
    """From -1 to 1, how well the motion between some `pairs` of frames of a video [f, 3, h, w] is that of a camera with
    `poses` [f, 4, 4] in the room."""
    height, width = video.shape[-2:]
    product = ours = theirs = torch.zeros(())
    for first, second in pairs:
        truth, inside = true_flow(rooms, poses[first], poses[second], height, width)
        seen = estimated_flow(video[first], video[second]).clamp(-30, 30)
        product = product + (truth * seen * inside).sum()
        ours, theirs = ours + (seen.square() * inside).sum(), theirs + (truth.square() * inside).sum()
    return (product / (ours * theirs).sqrt().clamp(min=1e-6)).item()


def _pixels(height, width):
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    return torch.stack([x, y])


def _moved_back(picture, flow):
    height, width = picture.shape[-2:]
    place = _pixels(height, width) + flow[0]
    grid = torch.stack([place[0] / width, place[1] / height], -1) * 2 - 1
    return F.grid_sample(picture, grid[None], padding_mode="border", align_corners=False)


def _step(one, other):
    """What is still missing of the flow, by least squares in a window round each pixel."""
    padded = F.pad((one + other) / 2, (1, 1, 1, 1), mode="replicate")
    right = (padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]) / 2
    down = (padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]) / 2
    change = one - other

    def around(values):
        return F.avg_pool2d(values, WINDOW, 1, WINDOW // 2, count_include_pad=False)

    xx, xy, yy = around(right * right) + 1e-5, around(right * down), around(down * down) + 1e-5
    x, y = around(right * change), around(down * change)
    determinant = xx * yy - xy * xy
    return torch.cat([(yy * x - xy * y) / determinant, (xx * y - xy * x) / determinant], 1).clamp(-3, 3)
