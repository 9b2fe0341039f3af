"""The camera.zip that live's page saves is read as the folder would be, by every command."""

import io
import zipfile

import numpy as np
import pytest
from lingbot_world.camera import read_pose_folder
from lingbot_world.camera.formats.files import read_camera
from lingbot_world.camera.path import lens_from_fov
from lingbot_world.errors import CameraError
from lingbot_world.headless.camera_path import _pose_folder
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.live.serving import _zipped


def poses(count=33):
    walked = np.tile(np.eye(4), (count, 1, 1))
    walked[:, 2, 3] = 0.05 * np.arange(count)
    return walked


@pytest.fixture
def saved(tmp_path):
    file = tmp_path / "camera.zip"
    file.write_bytes(_zipped(poses(), lens_from_fov()))
    return file


def test_it_is_read_as_the_folder_would_be(saved, tmp_path):
    with zipfile.ZipFile(saved) as archive:
        archive.extractall(tmp_path / "camera")
    zipped, folder = read_pose_folder(saved), read_pose_folder(tmp_path / "camera")
    np.testing.assert_array_equal(zipped.c2w, folder.c2w)
    np.testing.assert_array_equal(zipped.intrinsics, folder.intrinsics)
    assert read_camera(saved)[0].origin.format == "lingbot"
    np.testing.assert_array_equal(_pose_folder(saved, actions=False).c2w, folder.c2w)


def test_the_camera_commands_read_it(saved, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["camera", "show", str(saved)])
    assert "Read as lingbot" in capsys.readouterr().out
    main(["camera", "convert", str(saved), str(tmp_path / "path.json")])
    np.testing.assert_allclose(read_camera(tmp_path / "path.json")[0].c2w, poses(), atol=1e-9)


@pytest.mark.parametrize("folder", ["walk-3/camera/", "walk-3\\camera\\"])
def test_a_zip_file_of_a_folder_is_read_too(folder, tmp_path):
    """With backslashes too, which PowerShell 5 writes into it."""
    file = tmp_path / "walk.ZIP"
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in (("poses.npy", poses()), ("intrinsics.npy", lens_from_fov()[None])):
            data = io.BytesIO()
            np.save(data, array)
            archive.writestr(folder + name, data.getvalue())
    assert len(read_camera(file)[0].c2w) == 33


@pytest.mark.parametrize("name", ["", "../poses.npy", "other.npy"])
def test_what_is_no_path_is_refused_by_the_zip_files_name(tmp_path, name):
    """Nothing is written outside of the temporary folder, and the message names the file that the user gave."""
    file = tmp_path / "bad.zip"
    with zipfile.ZipFile(file, "w") as archive:
        if name:
            archive.writestr(name, b"not an array")
    with pytest.raises(CameraError, match="bad.zip"):
        read_camera(file)
    with pytest.raises(CameraError, match="bad.zip"):
        read_camera(file, "lingbot")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.zip"]


def test_a_damaged_zip_file_is_refused(saved):
    saved.write_bytes(saved.read_bytes()[:-30])
    with pytest.raises(CameraError, match="camera.zip"):
        read_camera(saved, "lingbot")
