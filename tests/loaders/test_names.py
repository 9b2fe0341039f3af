"""Names of models from workflows, on the paths of every system: what they may reach, and what they may be called."""

import sys
from pathlib import PurePosixPath, PureWindowsPath

import pytest
from lingbot_world.errors import InputError
from lingbot_world.headless.options import parse_lora
from lingbot_world.host.files.names import new_parts, split_path
from lingbot_world.weights.files import read_tensors

ROOTS = (
    PureWindowsPath("D:\\KI Modelle\\ComfyUI\\models"),
    PureWindowsPath("\\\\server\\share\\models"),
    PurePosixPath("/Users/jos\u00e9/AI models"),
    PurePosixPath("/mnt/d/models"),
)
LONG = "\u00e9" * 127
HOSTILE = ["", "..", "../x", "a/../../x", "/etc/passwd", "//server/share", "C:\\x", "C:x", "c:/x", "a\\..\\..\\x"]
HOSTILE += ["\\x", "\\\\server\\share\\x", "\\\\?\\C:\\x", "a//..//x", "a/./x", "x\0", "a:stream", "./x", "a/"]
HOSTILE += [LONG + "\u00e9", "a/" * 600 + "x"]
REFUSED = ["con", "NUL.nf4", "a/com1", "a?", "a*b", "<a>", "a|b", 'a"', "a.", "a ", " a", "a\tb", "x.part", "a/b/c"]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_leave_their_folder_are_refused(name):
    for check in (split_path, new_parts):
        with pytest.raises(InputError, match="model"):
            check(name, "model")


@pytest.mark.parametrize("root", ROOTS, ids=str)
@pytest.mark.parametrize(
    "name", ["fast", "my package/high noise", "a\\b", "\u30e2\u30c7/\u0444\u0430.safetensors", LONG, "v1.0-nf4", "...x"]
)
def test_other_names_stay_below_it_on_every_system(root, name):
    parts = split_path(name, "model")
    path = root.joinpath(*parts)
    assert path.is_relative_to(root)
    assert path != root
    assert ".." not in path.parts
    assert path.drive == root.drive
    assert path.name == name.replace("\\", "/").rpartition("/")[2]


@pytest.mark.parametrize("name", [*REFUSED, "\u00e9" * 121])
def test_new_folders_are_called_what_every_system_can_store(name):
    with pytest.raises(InputError, match="`name`"):
        new_parts(name, "folder")


@pytest.mark.parametrize("name", ["fast-nf4", "my world, \u00fc", "package/lingbot_world_fast", "console", "\u4e16"])
def test_such_folders_are_made(name):
    assert "/".join(new_parts(name, "folder")) == name
    path = PureWindowsPath("D:\\models").joinpath(*new_parts(name, "folder"))
    assert not path.is_reserved()


def test_a_drive_letter_is_no_strength():
    assert str(parse_lora("C:\\my loras\\a.safetensors").path) == "C:\\my loras\\a.safetensors"
    given = parse_lora("high=C:\\my loras\\a.safetensors:0.5")
    assert (str(given.path), given.strength, given.expert) == ("C:\\my loras\\a.safetensors", 0.5, "high")


@pytest.mark.skipif(sys.platform == "win32", reason="paths of this length need a setting there")
def test_spaces_unicode_and_long_paths_are_read(golden, tmp_path):
    folder = tmp_path / "mein Modell \u4e16\u754c" / LONG / LONG
    folder.mkdir(parents=True)
    file = folder / "model.safetensors"
    file.write_bytes((golden / "nf4/single_layer_variants.safetensors").read_bytes())
    assert read_tensors(file)
