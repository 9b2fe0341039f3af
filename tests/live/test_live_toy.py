"""The trained toy follows whoever walks in it."""

import numpy as np
import pytest
import torch
from flow_cases import agreement
from lingbot_world.headless.live.opening import open_live
from lingbot_world.live import Session, Start
from lingbot_world.live.camera import WALKING_UNIT
from lingbot_world.tools.toyworld.paths import STEP
from lingbot_world.toy import write_toy_world
from toy_rooms import FOLLOWS, HALVES, SHOWN, Rooms


@pytest.mark.slow
def test_pictures_move_as_w_is_held(tmp_path):
    """In an unseen room, in both halves; a unit of the walk's path is as long as the toy's own longest step."""
    rooms = Rooms(write_toy_world(tmp_path / "toy"), 1)
    frame, room = rooms.truth[0, 0], rooms.scenes.rooms[:1]
    engine, _ = open_live(
        tmp_path / "toy" / "lingbot_world_fast",
        image=tmp_path / "toy/example/image.png",
        prompt="a room",
        width=160,
        height=96,
        chunk=3,
        device="cpu",
    )
    with Session(engine, Start(frame, room.captions()[0]), folder=tmp_path / "walks", fps=0) as session:
        session.press("w")
        made = [frames.pixels for frames, _ in zip(session, range(6), strict=False)]
        poses = torch.from_numpy(session.walk.kept.poses()[:33]).float()
    video = torch.from_numpy(np.concatenate(made))[SHOWN].permute(0, 3, 1, 2).float() / 127.5 - 1
    poses[:, :3, 3] *= STEP / WALKING_UNIT
    world = rooms.scenes.c2w[0, :1].float() @ poses
    assert all(agreement(video, room, world[SHOWN], pairs) > FOLLOWS for pairs in HALVES)
