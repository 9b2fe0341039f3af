"""Conversion of images from any colour profile to sRGB, and of video frames to and from BT.709."""

import struct
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
from PIL import ExifTags, Image

SRGB = ((0.64, 0.33), (0.30, 0.60), (0.15, 0.06))
ADOBE_RGB = ((0.64, 0.33), (0.21, 0.71), (0.15, 0.06))
PRIMARIES = {
    1: SRGB,
    9: ((0.708, 0.292), (0.17, 0.797), (0.131, 0.046)),
    12: ((0.68, 0.32), (0.265, 0.69), (0.15, 0.06)),
}
"""The x, y chromaticities of red, green and blue by the code points of ITU-T H.273: BT.709, BT.2020 and Display P3."""
HDR = {16: "PQ", 18: "HLG"}
"""The transfer functions of high dynamic range, by their code points in ITU-T H.273."""
BT709, UNSPECIFIED = 1, 2
"""Code points of ITU-T H.273, the same for primaries, transfer functions and colour matrices."""
HD = 1280, 720
D65, D50 = (0.3127, 0.329), np.array([0.9642, 1.0, 0.8249])
BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])
ADOBE_GAMMA, USUAL_GAMMA, GAMMA_TOLERANCE = 2.19921875, 2.2, 0.06
MODES = {"RGB": "RGB", "GRAY": "L", "CMYK": "CMYK", "Lab": "LAB"}
"""Pillow's image mode for each colour space of an ICC profile."""
CUBE = np.stack(np.meshgrid(*[np.linspace(0, 255, 6)] * 3), -1).reshape(36, 6, 3).astype(np.uint8)
TOLERANCE = 1
"""A profile counts as sRGB if it changes no 8-bit value by more than this."""
HEAD = 64 * 2**10

_Primaries = tuple[tuple[float, float], tuple[float, float], tuple[float, float]]


class Coding(NamedTuple):
    """The colour coding of a PNG, AVIF or HEIF file in code points of ITU-T H.273.

    narrow: whether black is 16 and white is 235.
    """

    primaries: int
    transfer: int
    narrow: bool = False


def video_frame(pixels: np.ndarray) -> Any:
    """Return sRGB pixels, uint8 [H, W, 3], as a PyAV frame, yuv420p in BT.709. The caller must set the encoder stream's
    colour tags by `tag_bt709`."""
    from av import VideoFrame

    frame = VideoFrame.from_ndarray(pixels, format="rgb24")
    return frame.reformat(format="yuv420p", dst_colorspace="ITU709")


def tag_bt709(stream: Any) -> None:
    """Set the colour tags of a PyAV encoder's stream to BT.709."""
    stream.colorspace = stream.color_primaries = stream.color_trc = BT709
    stream.color_range = 1


def assume_bt709(frame: Any) -> None:
    """Set a PyAV frame's colour matrix to BT.709 if it is unspecified and the frame is HD, as players assume."""
    if frame.colorspace == UNSPECIFIED and (frame.width >= HD[0] or frame.height >= HD[1]):
        frame.colorspace = BT709


def to_srgb(image: Image.Image, profile: bytes | None) -> tuple[Image.Image, list[str]]:
    """Convert an opaque image from an ICC profile (None: sRGB) to sRGB. Return the result, mode RGB, and notes for the
    user on a missing or invalid profile."""
    notes: list[str] = []
    if profile:
        from PIL import ImageCms  # here: ComfyUI's start has no use for it

        try:
            return _apply_profile(image, profile), notes
        except (OSError, ValueError, ImageCms.PyCMSError) as error:
            notes.append(f"has a colour profile that cannot be applied ({str(error)[:80]}): taken for sRGB")
    if image.mode == "CMYK":
        notes.append("is CMYK without a colour profile: converted without a press's colours")
    return image.convert("RGB"), notes


def profile_of(source: Image.Image, coding: Coding | None) -> bytes | None:
    """Return an image file's ICC profile: embedded, or built from `coding` or the file's gamma, primaries or Exif data.
    Return None for sRGB."""
    info = source.info
    if info.get("icc_profile"):
        return info["icc_profile"]
    if coding is not None and coding.transfer not in HDR:
        linear = coding.transfer == 8
        primaries = PRIMARIES.get(coding.primaries, SRGB)
        return None if primaries is SRGB and not linear else matrix_profile(primaries, 1.0 if linear else None)
    if info.get("srgb") is not None or source.format == "PNG" and not {"gamma", "chromaticity"} & info.keys():
        return None
    if {"gamma", "chromaticity"} & info.keys():
        return _of_png(info.get("gamma"), info.get("chromaticity"))
    if source.getexif().get_ifd(ExifTags.IFD.Interop).get(1) == "R03":
        return matrix_profile(ADOBE_RGB, ADOBE_GAMMA)
    return None


def _of_png(gamma: float | None, chromaticity: tuple[float, ...] | None) -> bytes | None:
    """Return the ICC profile of a PNG's gAMA and cHRM, or None for sRGB and invalid values."""
    exponent = 1 / gamma if gamma and 0.05 < gamma < 5 else USUAL_GAMMA
    usual = abs(exponent - USUAL_GAMMA) < GAMMA_TOLERANCE
    if chromaticity is None or len(chromaticity) != 8:
        return None if usual else matrix_profile(SRGB, exponent)
    white, red, green, blue = ((float(x), float(y)) for x, y in np.reshape(chromaticity, (4, 2)))
    if np.abs(np.array([white, red, green, blue]) - [D65, *SRGB]).max() < 0.005:
        return None if usual else matrix_profile(SRGB, exponent)
    if min(y for _, y in (white, red, green, blue)) <= 0.001:
        return None
    return matrix_profile((red, green, blue), None if usual else exponent, white)


def _apply_profile(image: Image.Image, data: bytes) -> Image.Image:
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(BytesIO(data))
    space = profile.profile.xcolor_space.strip()
    mode = MODES.get(space)
    if mode is None or (mode != image.mode and {mode, image.mode} & {"CMYK", "LAB"}):
        raise ValueError(f"a profile for {space}, and the image is {image.mode}")
    converted = image if image.mode == mode else image.convert(mode)
    srgb = ImageCms.createProfile("sRGB")
    transform = ImageCms.buildTransform(profile, srgb, mode, "RGB")
    if mode == "RGB":
        cube = Image.fromarray(CUBE)
        moved = np.array(ImageCms.applyTransform(cube, transform), np.int16) - CUBE
        if np.abs(moved).max() <= TOLERANCE:
            return converted
    done = ImageCms.applyTransform(converted, transform)
    assert done is not None  # None is returned only when an image is changed in place
    return done


def matrix_profile(primaries: _Primaries, gamma: float | None, white: tuple[float, float] = D65) -> bytes:
    """Return the bytes of an ICC 2.1 profile for x, y chromaticities. `gamma` is the exponent of the curve; None means
    sRGB's curve."""
    columns = _xyz(primaries, white).T
    values = np.linspace(0, 1, 1024)
    light = values**gamma if gamma else np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    curve = b"curv" + struct.pack(">II", 0, 1024) + np.round(light * 65535).astype(">u2").tobytes()
    text = b"described by the file\0"
    tags = {
        b"desc": b"desc\0\0\0\0" + struct.pack(">I", len(text)) + text + b"\0" * 78,
        b"cprt": b"text\0\0\0\0none\0",
        b"wtpt": _xyz_tag(D50),
    }
    for letter, column in zip(b"rgb", columns, strict=True):
        tags[bytes([letter]) + b"XYZ"], tags[bytes([letter]) + b"TRC"] = _xyz_tag(column), curve
    return _packed(tags)


def _xyz(primaries: _Primaries, white: tuple[float, float]) -> np.ndarray:
    """Return the matrix [3, 3] from linear RGB to XYZ, adapted to D50, the white point of ICC profiles."""
    points = np.array([[x / y, 1.0, (1 - x - y) / y] for x, y in primaries]).T
    light = np.array([white[0] / white[1], 1.0, (1 - sum(white)) / white[1]])
    matrix = points * np.linalg.solve(points, light)
    cones = (BRADFORD @ D50) / (BRADFORD @ light)
    return np.linalg.inv(BRADFORD) @ np.diag(cones) @ BRADFORD @ matrix


def _xyz_tag(values: np.ndarray) -> bytes:
    return b"XYZ \0\0\0\0" + b"".join(struct.pack(">i", round(float(value) * 65536)) for value in values)


def _packed(tags: dict[bytes, bytes]) -> bytes:
    start = 128 + 4 + 12 * len(tags)
    table, body = b"", b""
    for name, data in tags.items():
        table += name + struct.pack(">II", start + len(body), len(data))
        body += data + b"\0" * (-len(data) % 4)
    head = struct.pack(">I4sI4s4s4s", start + len(body), b"lcms", 0x02100000, b"mntr", b"RGB ", b"XYZ ")
    head += b"\0" * 12 + b"acsp" + b"\0" * 28 + b"".join(struct.pack(">i", round(x * 65536)) for x in D50.tolist())
    return head.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table + body


def coding_of(head: bytes) -> Coding | None:
    """Return the colour coding in the first bytes of a PNG, AVIF or HEIF file, or None."""
    if head.startswith(b"\x89PNG") and (at := head.find(b"cICP")) >= 0 and len(head) >= at + 8:
        return Coding(head[at + 4], head[at + 5], head[at + 7] == 0)
    if head[4:8] == b"ftyp" and (at := head.find(b"colrnclx")) >= 0 and len(head) >= at + 12:
        return Coding(*struct.unpack_from(">HH", head, at + 8))
    return None


def coding_in_profile(profile: bytes) -> Coding | None:
    """Return the colour coding in the cicp tag of an ICC profile, or None without this tag."""
    count = int.from_bytes(profile[128:132], "big")
    table = (profile[132 + 12 * at :][:12] for at in range(min(count, 100)))
    start = next((int.from_bytes(tag[4:8], "big") for tag in table if tag[:4] == b"cicp"), None)
    data = profile[start + 8 :][:2] if start is not None else b""
    return Coding(*data) if len(data) == 2 else None
