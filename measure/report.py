"""Reports on a measurement: messages, a table, and values for JSON."""

from collections import Counter
from typing import Any

import numpy as np

from .measurement import Measurement, Pair, median_errors_deg
from .video_camera import LEAST_TURN_DEG, VideoCamera

HEADER = "  frames      tracks   turn:  path   found     off   direction off   parallax"
FLAT = (
    "All that is seen lies on one plane, which two motions fit: the camera's, and one along the wall's normal. "
    "Directions may be off by as much as the wall is slanted."
)
PAIR_ANGLES = ("turn_asked_deg", "turn_found_deg", "turn_error_deg", "direction_error_deg")
VERDICTS = {
    True: "The video follows its path",
    False: "The video does not follow its path",
    None: "It is undecided whether the video follows its path",
}


def error_summary(measured: Measurement) -> str:
    """Return a message with the mean and the sum of the rotation errors (RotErr) and translation errors (TransErr)."""
    known = measured.camera.registered
    coverage = f"The camera was found in {known.sum()} of {len(known)} keyframes"
    if not known.any():
        return f"{coverage}."
    turns, steps = measured.rotation_errors_deg, measured.translation_errors
    turned = f"RotErr {turns.mean():.2f} degrees a frame ({np.deg2rad(turns).sum():.3f} rad in all)"
    return f"{coverage}: {turned}, TransErr {steps.mean():.3g} of the path's units ({steps.sum():.3g} in all)."


def camera_messages(camera: VideoCamera, lens_given: bool) -> list[str]:
    """Return messages on an estimated camera's coverage, scale, axes and lens. `lens_given`: whether the user gave the
    lens."""
    known = camera.registered
    found = f"The camera was found in {known.sum()} of {len(known)} keyframes of {camera.frames} frames"
    messages = [f"{found}; the poses between them are interpolated."]
    messages += [FLAT] if camera.flat else []
    if camera.moves:
        messages.append(
            "Scale: a video has none. The longest step between latent frames has length 1, as for the model."
        )
    else:
        messages.append("The camera only turns, or all is far away: every position is the first one's.")
    messages.append(
        "Axes: those of the first frame, x right, y down, z forward (OpenCV); the first pose is the identity."
    )
    source = "as given" if lens_given else "found in the video"
    if not (lens_given or camera.lens_found):
        source = (
            f"assumed: the video shows none (the view has to turn by {LEAST_TURN_DEG:.0f} degrees or more, "
            f"here {camera.turned_deg:.0f}); if you know it, give it"
        )
    return [*messages, f"Lens: {camera.fov_deg:.1f} degrees, {source}; square pixels, centred."]


def table(measured: Measurement) -> list[str]:
    """Return the lines of a table: a header and one row per pair of keyframes."""
    return [HEADER, *(_line(pair) for pair in measured.pairs)]


def summary(measured: Measurement) -> list[str]:
    """Return messages: the verdict, the median errors, the faults, and the pairs that were not judged."""
    judged, found, pairs = measured.judged, measured.found, measured.pairs
    messages = [
        f"{VERDICTS[measured.follows]}: {measured.following} of {len(judged)} judged pairs of keyframes do, of "
        f"{len(pairs)} in {measured.camera.frames} frames."
    ]
    if found:
        apart, (turn, direction) = np.median([pair.last - pair.first for pair in found]), median_errors_deg(found)
        directed = sum(not np.isnan(pair.direction_error_deg) for pair in found)
        also = f", direction {direction:.1f} degrees off in {directed} pairs" if directed else ""
        messages.append(
            f"Turn {turn:.2f} degrees off in the median{also}; the turn {turn / apart:.3f} degrees a frame."
        )
    notes = Counter(pair.note for pair in pairs if pair.note).most_common()
    messages += [f"{count} {'pair' if count == 1 else 'pairs'}: {note}." for note, count in notes]
    if not any(pair.path_moves for pair in pairs):
        still = max(pair.turn_asked_deg for pair in pairs) < 1e-3
        standing = "The path does not move: the errors are the motion of the video's camera."
        messages.append(standing if still else "The path only turns: no direction is judged.")
    messages += [FLAT] if measured.camera.flat else []
    if measured.camera.frames < len(measured.path):
        used = f"the first {measured.camera.frames}, the video's, were used"
        messages.append(f"The path has {len(measured.path)} poses: {used}.")
    return messages


def _line(pair: Pair) -> str:
    parallax = "" if pair.found is None else f"{pair.parallax:.2f}"
    direction = "" if np.isnan(pair.direction_error_deg) else f"{pair.direction_error_deg:.1f}"
    turn = "" if pair.found is None else f"{pair.turn_found_deg:7.2f} {pair.turn_error_deg:7.2f}"
    frames = f"{pair.first}-{pair.last}"
    numbers = f"  {frames:<11} {pair.tracks:6d}   {pair.turn_asked_deg:11.2f} {turn:>15}"
    return f"{numbers} {direction:>15} {parallax:>10}   {pair.note}".rstrip()


def as_values(measured: Measurement) -> dict[str, Any]:
    """Return the measurement as a dict for JSON. None marks a value that was not measured or judged."""
    turn, direction = median_errors_deg(measured.found)
    errors = zip(measured.poses[0], measured.rotation_errors_deg, measured.translation_errors, strict=True)
    return {
        "follows": measured.follows,
        "frames": measured.camera.frames,
        "width": measured.camera.width,
        "height": measured.camera.height,
        "pairs_following": measured.following,
        "pairs_judged": len(measured.judged),
        "median_turn_error_deg": _known(turn),
        "median_direction_error_deg": _known(direction),
        "keyframes": len(measured.camera.registered),
        "keyframes_registered": int(measured.camera.registered.sum()),
        "rot_err_rad": float(np.deg2rad(measured.rotation_errors_deg).sum()),
        "trans_err": float(measured.translation_errors.sum()),
        "frame_errors": [
            {"frame": int(frame), "rot_err_deg": float(turn), "trans_err": float(step)} for frame, turn, step in errors
        ],
        "pairs": [
            {"frames": [pair.first, pair.last], "tracks": pair.tracks}
            | {name: _known(getattr(pair, name)) for name in PAIR_ANGLES}
            | {"parallax": None if pair.found is None else pair.parallax, "note": pair.note}
            for pair in measured.pairs
        ],
    }


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value
