"""The trained toy follows the keys of a walk, and stands still without one."""

import threading
import time

import numpy as np
import pytest
import torch
from lingbot_world.camera.moves.presets import preset_path
from lingbot_world.headless.live.opening import open_live
from lingbot_world.live import Session, Start
from lingbot_world.live.camera import WALKING_UNIT
from lingbot_world.tools.toy.measure import decibels
from lingbot_world.tools.toy.pack import example
from lingbot_world.tools.toy.paths import STEP
from lingbot_world.tools.toy.render import render

CHUNKS = 6


@pytest.mark.slow
def test_pictures_move_as_w_is_held(toy_world, tmp_path):
    """A unit of the walk's path is as long as the toy's own longest step."""
    scene = example()
    engine, _ = open_live(
        toy_world / "lingbot_world_fast",
        image=toy_world / "example/image.png",
        prompt=scene.rooms.captions()[0],
        width=160,
        height=96,
        chunk=1,
        device="cpu",
    )
    start = render(scene.rooms, scene.c2w[:, :1], 96, 160)[0, 0]
    with Session(engine, Start(start, scene.rooms.captions()[0]), folder=tmp_path / "walks", fps=0) as session:
        session.hold(["w", "shift"])  # a longest step a frame
        made = [frames.pixels for frames, _ in zip(session, range(CHUNKS), strict=False)]
        poses = torch.from_numpy(session.walk.store.poses()[: 4 * CHUNKS - 3]).float()
    last = torch.from_numpy(made[-1][-1]).permute(2, 0, 1).float() / 127.5 - 1
    back = torch.from_numpy(preset_path("dolly_out", frames=len(poses), amount=1).c2w).float()
    poses[:, :3, 3] *= STEP / WALKING_UNIT
    ways = torch.stack([poses[-1], torch.eye(4), back[-1]])
    ahead, still, behind = render(scene.rooms, (scene.c2w[0, :1] @ ways)[None], 96, 160)[0]
    assert decibels(last, ahead) > 2 + max(decibels(last, still), decibels(last, behind))
    assert np.linalg.norm(poses[-1, :3, 3]) > 3 * STEP


@pytest.mark.slow
def test_a_picture_stays_what_it_is_for_a_minute_without_an_input(toy_world, tmp_path, monkeypatch):
    """The minute is played: each look of the thread is a second later."""
    engine, start = open_live(toy_world, width=160, height=96, chunk=1, device="cpu")
    made, looks, now = [], threading.Semaphore(0), [0.0]
    with Session(engine, start, folder=tmp_path / "walks") as session:
        stands = session._update_still
        monkeypatch.setattr(session, "_update_still", lambda: (stands(), looks.release())[0])
        for clocked in (session.pace, session.controls):
            monkeypatch.setattr(clocked, "_clock", lambda: time.monotonic() + now[0])
        session.start(made.append)
        while now[0] < 60:
            assert looks.acquire(timeout=120)
            now[0] += session.still
            session._wake()
        assert session.still
    image = engine.encode_image(start.frame)[:, :, :1]
    picture = engine.new_vae_decoder(False).decode(image)[0]
    last = torch.from_numpy(made[-1].pixels[-1])
    assert decibels(*(pixels / 127.5 - 1 for pixels in (last, picture))) > 40
