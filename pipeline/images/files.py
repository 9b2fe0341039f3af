"""Image files read as upright, opaque sRGB pixels with 8 bits per channel."""

from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from ...errors import InputError
from ...fields import Reported
from .colours import HDR, HEAD, Coding, coding_in_profile, coding_of, profile_of, to_srgb

BACKGROUND = 255
"""The grey level on which transparent images are composited: white, as in browsers."""
HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"hevx", b"mif1", b"msf1", b"avif", b"avis")
SUBFILE, PHOTOMETRIC, DNG_VERSION = 254, 262, 50706
"""The numbers of the TIFF tags NewSubfileType, PhotometricInterpretation and DNGVersion."""
BITS, LARGEST = 258, (341, 281)
"""The numbers of the TIFF tag BitsPerSample, and of the tags SMaxSampleValue and MaxSampleValue."""
DARK = 17
"""A 16-bit image seems to have unscaled 12-bit values if, as 8 bits, all are below this: 4095 of 65535 is 16 of 255."""
WITH_ALPHA = ("RGBA", "LA", "PA", "RGBa", "La")


class Picture(NamedTuple):
    """The pixels of an image, uint8 RGB [H, W, 3], and notes for the user on changed or ignored content."""

    pixels: np.ndarray
    notes: tuple[str, ...]


def open_picture(source: str | Path | BytesIO) -> Image.Image:
    """Open an image file with Pillow, and with pillow-heif where Pillow cannot. Raises InputError if pillow-heif is
    missing."""
    try:
        return Image.open(source)
    except Image.UnidentifiedImageError as error:
        head = _head(source)
        if head[4:8] != b"ftyp" or head[8:12] not in HEIF_BRANDS:
            raise
        try:
            from pillow_heif import register_heif_opener
        except ImportError:
            raise InputError(
                f"{source}: a HEIC or AVIF image, which needs the package pillow-heif: pip install pillow-heif; or "
                "save it as JPEG or PNG"
            ) from error
    register_heif_opener()
    return Image.open(source)


def _read_pixels(image: Image.Image, head: bytes) -> Picture:
    """Return a picture of 8-bit sRGB pixels and notes to the user, such as "is HDR". The caller must put the file's
    name before each note. `head` has the file's first bytes."""
    _refuse_other_pixels(image, head)
    coding = coding_of(head)
    notes = _coding_notes(coding or coding_in_profile(image.info.get("icc_profile") or b""))
    upright = ImageOps.exif_transpose(image)
    alpha = None
    if upright.mode.startswith("I"):
        upright, alpha = _grey_of_16_bits(upright, _tag(image, PHOTOMETRIC) == 0, _white(image))
    elif upright.mode in WITH_ALPHA or "transparency" in upright.info:
        upright = upright.convert("RGBA")
        alpha = np.array(upright.getchannel("A"))
    colour, more = to_srgb(_opaque(upright), profile_of(image, coding))
    pixels = np.array(colour)
    if pixels.max() < DARK and _white(image) == 65535 and (image.mode.startswith("I") or _has_16_bits(image, head)):
        notes.append(f"has no value above {pixels.max()} of 255, so it is dark; scale 12 bits to 16")
    if alpha is not None and alpha.min() < 255:
        pixels = over_background(pixels, alpha)
        notes.append("is transparent in places, and was put on white")
    return Picture(pixels, (*notes, *more))


def _refuse_other_pixels(image: Image.Image, head: bytes) -> None:
    if image.mode == "F":
        raise InputError("its pixels are floating-point numbers; save it in 8 or 16 bits")
    low, high = np.array(image.getextrema() if image.mode == "I" else (0, 0)).tolist()
    if low < 0 or high >= 2**16:
        raise InputError("its pixels are numbers of 32 bits; save it in 8 or 16 bits")
    if not image.mode.startswith("I") and _white(image) < 65535:
        raise InputError(f"the white of its 16-bit colours is {_white(image)}; save it in 8 bits, or scaled to 65535")
    if (_tag(image, SUBFILE) or 0) & 1 or _tag(image, DNG_VERSION) is not None or head[8:10] == b"CR":
        raise InputError("a camera's raw file, whose first picture is a small preview; export it as JPEG or PNG")


def _tag(image: Image.Image, number: int) -> Any:
    return getattr(image, "tag_v2", {}).get(number) if image.format == "TIFF" else None


def _white(image: Image.Image) -> int:
    """Return the value of white in a 16-bit image: 65535, or less if a TIFF tag specifies 9 to 15 bits."""
    bits = int(np.max(_tag(image, BITS) or 16))
    stated = [int(np.max(value)) for tag in LARGEST if (value := _tag(image, tag))]
    return next((white for white in (2**bits - 1, *stated) if 255 < white < 65535 and not white & (white + 1)), 65535)


def _has_16_bits(image: Image.Image, head: bytes) -> bool:
    return head[24:25] == b"\x10" if head.startswith(b"\x89PNG") else int(np.max(_tag(image, BITS) or 0)) == 16


def _grey_of_16_bits(image: Image.Image, white_is_0: bool, white: int) -> tuple[Image.Image, np.ndarray | None]:
    values, key = np.array(image, np.float32), image.info.get("transparency")
    alpha = None if key is None else np.where(values == key, 0, 255).astype(np.uint8)
    values = white - values if white_is_0 else values
    return Image.fromarray(np.clip(values * 255 / white, 0, 255).round().astype(np.uint8)), alpha


def over_background(pixels: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Return the pixels, uint8 [H, W, 3], blended over white with the opacity `alpha`, uint8 [H, W]."""
    share = alpha[..., None].astype(np.float32) / 255
    return np.round(pixels * share + BACKGROUND * (1 - share)).astype(np.uint8)


def picture_of(path: Path) -> Picture:
    """Return the pixels of the first image in a file, with notes that name the file. Raises InputError for an
    unsupported pixel format."""
    with open_picture(path) as opened:
        try:
            pixels, notes = read_opened(opened)
            frames = getattr(opened, "n_frames", 1)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
    first = [f"{path} has {frames} images; the video begins with the first."] if frames > 1 else []
    return Picture(pixels, (*first, *notes))


def read_opened(image: Image.Image, head: bytes = b"") -> Picture:
    """Return the pixels of an image opened by Pillow, as browsers show them. Raises InputError for pixels that cannot
    be converted to 8 bits.

    head: the file's first bytes, which state the colour coding and identify camera raw files; unused if Pillow knows
    the file's path.
    """
    file = str(getattr(image, "filename", ""))
    pixels, notes = _read_pixels(image, _head(file) if Path(file).is_file() else head)
    return Picture(pixels, tuple(Reported(f"{file or 'The image'} {note}.") for note in notes))


def _opaque(image: Image.Image) -> Image.Image:
    """Return the image in a mode to which a colour profile can apply: RGB, L, CMYK or LAB. The alpha channel is
    dropped, not blended."""
    if image.mode in ("RGB", "L", "CMYK", "LAB"):
        return image
    return image.convert("L" if image.mode == "1" else "RGB")


def _coding_notes(coding: Coding | None) -> list[str]:
    if coding is not None and coding.narrow:
        return ["has black at 16 and white at 235, as video has, which is not mapped: it looks pale"]
    if coding is None or coding.transfer not in HDR:
        return []
    return [f"is HDR ({HDR[coding.transfer]}), which is not mapped: it looks pale or dark; save it as SDR"]


def _head(source: str | Path | BytesIO) -> bytes:
    if isinstance(source, BytesIO):
        return source.getvalue()[:HEAD]
    with Path(source).open("rb") as file:
        return file.read(HEAD)
