"""The page draws a map and turns its picture at once: each batch of frames has the camera of each frame."""

import io
import urllib.request
import zipfile

import numpy as np
import pytest
from lingbot_world.camera.rotation import from_angles, rigid
from lingbot_world.live.camera import integer_poses
from live_cases import Server, chunks, walking


def test_whole_numbers_are_thousandths_of_a_unit_and_hundredths_of_a_degree():
    rotation = from_angles("YXZ", [[30.0, -10.0, 0.0], [-175.5, 80.25, 0.0]])
    poses = rigid(rotation, np.array([[0.0, 0.0, 0.0], [1.2345, -0.5, 20.0]]))
    assert integer_poses(poses) == [[0, 0, 0, 3000, -1000], [1234, -500, 20000, -17550, 8025]]


@pytest.mark.parametrize("chunk", [1, 3])
def test_every_frame_has_its_pose(toy_package, tmp_path, chunk):
    with walking(toy_package, tmp_path, chunk=chunk) as session:
        session.press("w")
        session.look(30, 5)
        made = chunks(session, 3)
        kept = session.walk.store.poses()
    assert all(len(frames.poses) == len(frames.pixels) for frames in made)
    np.testing.assert_array_equal(np.concatenate([frames.poses for frames in made]), kept)


def test_only_our_own_page_gets_the_camera(toy_package, tmp_path):
    with Server(toy_package, tmp_path) as server:
        client = server.client(lingbot_world=True)
        started = client.status("started")
        client.event("look", [30, 0], event_id=3)
        client.until(lambda message: message.get("event_id") == 3)
        client.chunk(client.batches[-1]["chunk_index"] + 3)
        camera = [row for batch in client.batches for row in batch["camera"]]
        assert len(camera) == sum(batch["num_frames"] for batch in client.batches)
        assert camera[-1] == [0, 0, 0, 3000, 0]
        url = f"http://127.0.0.1:{server.port}/walk/path?walk={started['resume']}"
        with urllib.request.urlopen(url) as answer:
            saved = zipfile.ZipFile(io.BytesIO(answer.read()))
        lens = np.load(io.BytesIO(saved.read("intrinsics.npy")))
        np.testing.assert_allclose(started["lens"], lens[0] * ([48 / 832, 32 / 480] * 2), atol=1e-3)
        client.close()
        other = server.client()
        other.chunk()
        assert "camera" not in other.batches[0]
        other.close()
