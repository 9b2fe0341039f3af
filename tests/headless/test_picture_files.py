"""Pictures and videos as people have them: turned, in other colours, transparent, at uneven times."""

import struct
import sys
import zlib
from io import BytesIO

import numpy as np
import pytest
from lingbot_world.errors import InputError
from lingbot_world.fields import Reported
from lingbot_world.headless.files.pictures import colour_frames, frame_notes, grey_frames, image_notes, read_image
from lingbot_world.headless.live.pictures import read_upload, upload_notes
from lingbot_world.host.files import image as host_image
from lingbot_world.pipeline.images.colours import ADOBE_GAMMA, ADOBE_RGB, PRIMARIES, SRGB, _packed, matrix_profile
from PIL import Image, ImageCms, PngImagePlugin

PATCHES = [
    [(200, 60, 50), (60, 160, 70), (50, 80, 190), (220, 180, 60)],
    [(128, 128, 128), (240, 120, 150), (30, 90, 60), (190, 140, 110)],
]
SCENE = np.array(PATCHES, np.uint8).repeat(16, 0).repeat(16, 1)
P3, ADOBE = matrix_profile(PRIMARIES[12], None), matrix_profile(ADOBE_RGB, ADOBE_GAMMA)
LINEAR = matrix_profile(SRGB, 1.0)


def profile_of(data: bytes) -> ImageCms.ImageCmsProfile:
    return ImageCms.ImageCmsProfile(BytesIO(data))


def scene_in(data: bytes) -> Image.Image:
    """The scene as numbers of a profile."""
    done = ImageCms.profileToProfile(Image.fromarray(SCENE), ImageCms.createProfile("sRGB"), profile_of(data))
    assert done is not None
    return done


def close(pixels: np.ndarray, levels: int) -> bool:
    """Whether the middles of the patches are the scene's: codecs of half the colours blur their edges."""
    off = np.abs(pixels.astype(int) - SCENE).reshape(2, 16, 4, 16, 3)
    return int(off[:, 4:12, :, 4:12].max()) <= levels


@pytest.mark.parametrize(("profile", "levels"), [(P3, 2), (ADOBE, 2), (LINEAR, 6)], ids=["P3", "Adobe", "linear"])
def test_profiles_become_srgb_through_every_door(tmp_path, profile, levels):
    file = tmp_path / "photo.png"
    scene_in(profile).save(file, icc_profile=profile)
    assert not close(np.array(Image.open(file)), 8)
    assert close(read_image(file), levels)
    assert close(read_image(Image.open(file)), levels)
    assert close(read_upload(file.read_bytes(), (32, 64), crop=False), levels)
    assert close(next(iter(colour_frames(tmp_path))), levels)
    assert close((host_image.read_image(file)[0].numpy() * 255).round(), levels)
    assert image_notes(file) == ()


def test_a_profile_that_is_srgbs_changes_nothing(tmp_path):
    data = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    Image.fromarray(SCENE).save(tmp_path / "a.png", icc_profile=data)
    np.testing.assert_array_equal(read_image(tmp_path / "a.png"), SCENE)


def test_a_grey_photo_with_a_profile_of_three_colours(tmp_path):
    Image.fromarray(SCENE[..., 0]).save(tmp_path / "a.png", icc_profile=P3)
    grey = read_image(tmp_path / "a.png")
    assert np.abs(grey.astype(int) - SCENE[..., :1]).max() <= 2


def test_a_broken_profile_is_reported(tmp_path):
    Image.fromarray(SCENE).save(tmp_path / "a.png", icc_profile=b"broken" * 40)
    np.testing.assert_array_equal(read_image(tmp_path / "a.png"), SCENE)
    (note,) = image_notes(tmp_path / "a.png")
    assert "profile that cannot be applied" in note
    assert isinstance(note, Reported)


def test_cmyk_without_a_profile_is_reported(tmp_path):
    Image.fromarray(SCENE).convert("CMYK").save(tmp_path / "a.jpg", quality=98)
    assert close(read_image(tmp_path / "a.jpg"), 12)
    assert "CMYK without a colour profile" in image_notes(tmp_path / "a.jpg")[0]


def test_lab_is_converted(tmp_path):
    lab = ImageCms.createProfile("LAB")
    converted = ImageCms.profileToProfile(Image.fromarray(SCENE), ImageCms.createProfile("sRGB"), lab, outputMode="LAB")
    assert converted is not None
    converted.save(tmp_path / "a.tif", icc_profile=ImageCms.ImageCmsProfile(lab).tobytes())
    assert close(read_image(tmp_path / "a.tif"), 6)


def png_with(file, chunks: dict[bytes, bytes], picture: Image.Image) -> None:
    info = PngImagePlugin.PngInfo()
    for name, data in chunks.items():
        info.add(name, data)
    picture.save(file, pnginfo=info)


def test_adobe_rgb_by_exif_alone(tmp_path):
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0xA001] = 0xFFFF
    exif.get_ifd(0x8769)[0xA005] = {1: "R03"}
    scene_in(ADOBE).save(tmp_path / "a.png", exif=exif)
    assert close(read_image(tmp_path / "a.png"), 2)


def test_pngs_gamma_and_primaries(tmp_path):
    numbers = [0.3127, 0.329, *np.ravel(PRIMARIES[12])]
    chunks = {
        b"gAMA": (45455).to_bytes(4, "big"),
        b"cHRM": b"".join(round(value * 100000).to_bytes(4, "big") for value in numbers),
    }
    png_with(tmp_path / "a.png", chunks, scene_in(P3))
    assert close(read_image(tmp_path / "a.png"), 2)
    png_with(tmp_path / "a.png", {b"gAMA": (100000).to_bytes(4, "big")}, scene_in(LINEAR))
    assert close(read_image(tmp_path / "a.png"), 6)
    png_with(tmp_path / "a.png", {b"gAMA": (45455).to_bytes(4, "big")}, Image.fromarray(SCENE))
    np.testing.assert_array_equal(read_image(tmp_path / "a.png"), SCENE)


def test_pngs_code_points(tmp_path):
    png_with(tmp_path / "a.png", {b"cICP": bytes([12, 13, 0, 1])}, scene_in(P3))
    assert close(read_image(tmp_path / "a.png"), 2)
    png_with(tmp_path / "a.png", {b"cICP": bytes([9, 16, 0, 1])}, Image.fromarray(SCENE))
    assert "HDR (PQ)" in image_notes(tmp_path / "a.png")[0]


def test_pillows_door_and_folders_report_as_files_do(tmp_path):
    png_with(tmp_path / "a.png", {b"cICP": bytes([12, 13, 0, 1])}, scene_in(P3))
    assert close(read_image(Image.open(tmp_path / "a.png")), 2)
    png_with(tmp_path / "a.png", {b"cICP": bytes([9, 16, 0, 1])}, Image.fromarray(SCENE))
    for notes in (image_notes(Image.open(tmp_path / "a.png")), frame_notes(tmp_path)):
        assert "a.png is HDR (PQ)" in notes[0]
    assert "The image is HDR (PQ)" in upload_notes((tmp_path / "a.png").read_bytes())[0]
    (tmp_path / "a.png").write_bytes(b"no picture")
    assert frame_notes(tmp_path) == []
    assert "The image is transparent in places" in image_notes(Image.new("RGBA", (4, 4)))[0]


def test_hdr_by_a_profile_is_reported(tmp_path):
    data = _packed({b"cprt": b"text\0\0\0\0none", b"cicp": b"cicp\0\0\0\0" + bytes([9, 18, 0, 1])})
    Image.fromarray(SCENE).save(tmp_path / "a.png", icc_profile=data)
    assert "a.png is HDR (HLG)" in image_notes(tmp_path / "a.png")[0]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_every_orientation(tmp_path, orientation, suffix):
    turns = {1: lambda a: a, 2: np.fliplr, 3: lambda a: np.rot90(a, 2), 4: np.flipud}
    turns |= {5: lambda a: a.swapaxes(0, 1), 6: lambda a: np.rot90(a, 1)}
    turns |= {7: lambda a: np.rot90(a, 2).swapaxes(0, 1), 8: lambda a: np.rot90(a, -1)}
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 98} if suffix in ("jpg", "webp") else {}
    stored = Image.fromarray(np.ascontiguousarray(turns[orientation](SCENE)))
    stored.save(tmp_path / f"a.{suffix}", exif=exif, **options)
    assert read_image(tmp_path / f"a.{suffix}").shape == SCENE.shape
    assert np.abs(read_image(tmp_path / f"a.{suffix}").astype(int) - SCENE)[4:12, 4:12].max() < 12


def transparent() -> Image.Image:
    alpha = np.full(SCENE.shape[:2], 255, np.uint8)
    alpha[:16], alpha[16:, :16] = 0, 128
    return Image.fromarray(np.dstack([SCENE, alpha]))


@pytest.mark.parametrize("suffix", ["png", "webp", "tif"])
def test_transparency_is_put_on_white_and_reported(tmp_path, suffix):
    file = tmp_path / f"a.{suffix}"
    transparent().save(file, **({"lossless": True} if suffix == "webp" else {}))
    pixels = read_image(file)
    assert (pixels[:16] == 255).all()
    assert tuple(pixels[20, 4]) == (191, 191, 191)
    assert tuple(pixels[20, 20]) == PATCHES[1][1]
    (note,) = image_notes(file)
    assert "was put on white" in note
    assert isinstance(note, Reported)


def test_palettes_with_transparency(tmp_path):
    picture = Image.fromarray(SCENE).quantize(16)
    picture.save(tmp_path / "a.png", transparency=int(np.array(picture)[0, 0]))
    assert tuple(read_image(tmp_path / "a.png")[0, 0]) == (255, 255, 255)
    Image.fromarray(SCENE).save(tmp_path / "b.png", transparency=PATCHES[0][0])
    assert tuple(read_image(tmp_path / "b.png")[0, 0]) == (255, 255, 255)
    picture.save(tmp_path / "c.gif", transparency=int(np.array(picture)[0, 0]))
    assert tuple(read_image(tmp_path / "c.gif")[0, 0]) == (255, 255, 255)


def test_canvas_images_with_alpha_are_put_on_white():
    from lingbot_world.pipeline.geometry import Geometry
    from torch import tensor

    image = tensor([[[[0.2, 0.4, 0.6, 0.5]] * 16] * 16])
    fitted = host_image.fit_image(image, Geometry(16, 16, 1), "stretch")
    np.testing.assert_allclose(fitted[0, 8, 8], [0.6, 0.7, 0.8], atol=1e-5)


def test_animated_pictures_are_reported(tmp_path):
    frames = [Image.fromarray(SCENE), Image.fromarray(SCENE[::-1])]
    frames[0].save(tmp_path / "a.webp", save_all=True, append_images=frames[1:], lossless=True)
    (note,) = image_notes(tmp_path / "a.webp")
    assert note.endswith("a.webp has 2 images; the video begins with the first.")


def test_heic(tmp_path):
    heif = pytest.importorskip("pillow_heif")
    heif.from_pillow(scene_in(P3)).save(tmp_path / "a.heic", quality=100, chroma=444, icc_profile=P3)
    Image.fromarray(SCENE).save(tmp_path / "b.avif", quality=100)
    assert close(read_image(tmp_path / "b.avif"), 8)
    assert close(read_image(tmp_path / "a.heic"), 8)


def test_heic_without_its_package_says_how(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.setattr(Image, "ID", [name for name in Image.ID if name not in ("HEIF", "AVIF")])
    (tmp_path / "a.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    with pytest.raises(InputError, match="a.heic: a HEIC or AVIF image, .*pip install pillow-heif"):
        read_image(tmp_path / "a.heic")


RAMP = np.linspace(0, 65535, 64).astype(np.uint16)[None].repeat(8, 0)


@pytest.mark.parametrize(
    ("stored", "options", "shown"),
    [
        (RAMP, {"tiffinfo": {262: 0}}, 255 - RAMP // 257),
        (RAMP, {}, RAMP // 257),
        (RAMP.astype(np.int32), {}, RAMP // 257),
        (RAMP // 16, {"tiffinfo": {341: 4095}}, RAMP // 257),
        (RAMP // 16, {"tiffinfo": {281: 4095, 262: 0}}, 255 - RAMP // 257),
        (RAMP // 16, {}, RAMP // 16 // 257),
    ],
    ids=["white is 0", "black is 0", "in 32 bits", "12 bits", "12 bits, white is 0", "12 bits, not stated"],
)
def test_grey_tiffs_of_sixteen_bits(tmp_path, stored, options, shown):
    Image.fromarray(stored).save(tmp_path / "grey.tif", **options)
    assert np.abs(read_image(tmp_path / "grey.tif")[..., 0].astype(int) - shown).max() <= 1
    assert any("so it is dark" in note for note in image_notes(tmp_path / "grey.tif")) == (shown.max() < 16)


def test_a_dark_png_of_sixteen_bits_in_colour_is_reported(tmp_path):
    """Pillow opens it with 8 bits."""
    rows = b"".join(b"\0" + np.repeat(row // 16, 3).astype(">u2").tobytes() for row in RAMP)
    chunks = {b"IHDR": struct.pack(">IIBBBBB", 64, 8, 16, 2, 0, 0, 0), b"IDAT": zlib.compress(rows), b"IEND": b""}
    packed = (
        struct.pack(">I4s", len(data), name) + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks.items()
    )
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(packed))
    assert any("no value above 15 of 255, so it is dark" in note for note in image_notes(tmp_path / "a.png"))


def test_grey_tiffs_of_twelve_packed_bits(tmp_path):
    """Two pixels are three bytes."""
    values = np.linspace(0, 4095, 64).astype(int)
    packed = "".join(f"{value:012b}" for value in values).encode()
    data = int(packed, 2).to_bytes(96, "big")
    tags = {256: 64, 257: 1, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: 1, 279: 96}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    head = struct.pack("<2sHI", b"II", 42, 8 + 96) + data + struct.pack("<H", len(tags)) + entries + bytes(4)
    (tmp_path / "grey.tif").write_bytes(head)
    assert np.abs(read_image(tmp_path / "grey.tif")[0, :, 0] - values / 4095 * 255).max() <= 1


def test_a_transparent_value_of_sixteen_bits(tmp_path):
    file = tmp_path / "grey.png"
    Image.fromarray(RAMP).save(file, transparency=0)
    assert read_image(file)[0, :2, 0].tolist() == [255, 4]
    assert any("transparent" in note for note in image_notes(file))


@pytest.mark.parametrize("sign", [1, -1])
def test_pixels_of_32_bits_are_refused(tmp_path, sign):
    Image.fromarray(sign * 30000 * RAMP.astype(np.int32)).save(tmp_path / "depth.tif")
    with pytest.raises(InputError, match="numbers of 32 bits"):
        read_image(tmp_path / "depth.tif")


@pytest.mark.parametrize("tag", [254, 50706])
def test_raw_files_of_cameras_are_refused(tmp_path, tag):
    """Pillow opens them as TIFF, and their first picture is a preview."""
    value = {254: 1, 50706: b"\1\4\0\0"}[tag]
    Image.fromarray(SCENE).save(tmp_path / "photo.dng", format="TIFF", tiffinfo={tag: value})
    with pytest.raises(InputError, match="a camera's raw file"):
        read_image(tmp_path / "photo.dng")


def test_the_range_of_video_is_reported(tmp_path):
    chunks = PngImagePlugin.PngInfo()
    chunks.add(b"cICP", bytes([1, 13, 0, 0]))
    Image.fromarray(SCENE).save(tmp_path / "still.png", pnginfo=chunks)
    assert any("black at 16" in note for note in image_notes(tmp_path / "still.png"))


def test_folders_of_sixteen_bits(tmp_path):
    for bits, folder in ((8, tmp_path / "png8"), (16, tmp_path / "png16")):
        folder.mkdir()
        for number in range(3):
            grey = SCENE[..., 0] + np.uint8(number)
            Image.fromarray(grey if bits == 8 else grey.astype(np.uint16) * 257).save(folder / f"{number:04d}.png")
    for frames in (grey_frames, colour_frames):
        for eight, sixteen in zip(frames(tmp_path / "png8"), frames(tmp_path / "png16"), strict=True):
            np.testing.assert_array_equal(eight, sixteen)


def test_a_folder_of_photos_and_depth_maps(tmp_path):
    for number in range(3):
        Image.new("L", (4, 4), 9).save(tmp_path / f"{number}.png")
        Image.new("L", (4, 4), 200).save(tmp_path / f"{number}.jpg")
    with pytest.raises(InputError, match=r"as many .* as .* files \(3\), and one kind is the video's frames"):
        list(grey_frames(tmp_path))
    (tmp_path / "2.png").unlink()
    assert [int(frame[0, 0]) for frame in grey_frames(tmp_path)] == [200] * 3


def test_folders_in_the_order_of_the_number_that_varies(tmp_path):
    for number in (10, 9, 11):
        Image.new("L", (4, 4), number).save(tmp_path / f"shot2_{number}_x4.png")
    assert [int(frame[0, 0]) for frame in grey_frames(tmp_path)] == [9, 10, 11]
    for name, level in (("0.5", 1), ("1.0", 2), ("1.5", 3)):
        Image.new("RGB", (4, 4), (level,) * 3).save(tmp_path / f"{name}.bmp")
    for file in tmp_path.glob("*.png"):
        file.unlink()
    assert [int(frame[0, 0]) for frame in grey_frames(tmp_path)] == [1, 2, 3]
    (tmp_path / "9.5.bmp").write_bytes((tmp_path / "0.5.bmp").read_bytes())
    with pytest.raises(InputError, match="missing or out of order"):
        list(grey_frames(tmp_path))
