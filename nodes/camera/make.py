"""The nodes that make camera paths: from presets, held keys, keyframes, other paths, or the camera editor."""

from comfy_api.latest import io, ui

from ...camera import frame_count
from ...camera.moves import PRESETS, path_from_editor, path_from_keys, path_from_load3d, preset_path
from ...camera.moves.keys import STEP, TURN_DEG
from ...camera.moves.presets import DEFAULT_RADIUS, STEADY_NOTE
from ...camera.poses import lens_change
from ...host.files.camera import chain, show_warnings
from ...host.prompt.notice import show_warning
from ..inputs import (
    CATEGORY,
    Camera,
    camera_outputs,
    choice_input,
    easing_input,
    float_input,
    fov_input,
    frames_input,
    seed_input,
)
from ..validation import check_given, validate

EMPTY_EDITOR = (
    '{"version": 1, "frames": 81, "fps": 16, "fov_deg": 79.0, "ease": "linear", "loop": false, "keyframes": '
    '[{"frame": 0, "position": [0, 0, 0], "quaternion": [0, 0, 0, 1]}, '
    '{"frame": 80, "position": [0, 0, 2], "quaternion": [0, 0, 0, 1]}]}'
)


class LingBotWorldCameraPreset(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldCameraPreset",
            display_name="LingBot-World Camera Preset",
            category=CATEGORY,
            description="A camera move by its name in film: pan, tilt and roll turn; dolly, truck and pedestal travel; "
            "orbit, arc, crane and spiral go around a subject. " + STEADY_NOTE,
            search_aliases=["lingbot", "camera move", "dolly", "pan", "orbit", "zoom", "truck", "crane", "handheld"],
            inputs=[
                choice_input(
                    "preset",
                    PRESETS,
                    "The move. Left, right, up and down are the camera's direction; the image moves the other way.",
                    default="orbit_left",
                ),
                frames_input("Frames of the move. Rounded down to 4n+1."),
                float_input(
                    "amount",
                    (-10_000.0, 0.0, 10_000.0),
                    "How far: world units for moves that travel, degrees for those that turn. 0 is the move's "
                    "own default; a negative number goes the other way. " + STEADY_NOTE,
                    step=0.5,
                ),
                easing_input(),
                float_input(
                    "radius",
                    (0.01, DEFAULT_RADIUS, 10_000.0),
                    "Distance of the subject that orbits, arcs, cranes and spirals keep in view.",
                    step=0.1,
                ),
                float_input(
                    "shake", (0.0, 0.0, 30.0), "Degrees of handheld shake on top of the move.", step=0.1, advanced=True
                ),
                seed_input(
                    "Seed of the handheld shake. Without shake the seed changes nothing.", 2**32 - 1, advanced=True
                ),
                fov_input(),
            ],
            outputs=camera_outputs(),
        )

    @classmethod
    def execute(cls, preset, frames, amount, easing, radius, shake, seed, fov_deg) -> io.NodeOutput:
        options = {"radius": radius, "shake": shake, "seed": seed, "fov_deg": fov_deg}
        path = preset_path(preset, frames=frames, amount=amount or None, easing=easing, **options)
        return io.NodeOutput(path, len(path))


class LingBotWorldCameraKeys(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldCameraKeys",
            display_name="LingBot-World Camera Keys",
            category=CATEGORY,
            description="A camera path from game keys: w a s d walk, i j k l look up, left, down, right. "
            "Write keys held together and for how many frames: w-10,iw-15,none-10.",
            search_aliases=["lingbot", "wasd", "act2cam", "keyboard camera", "action", "walk"],
            inputs=[
                io.String.Input(
                    "script",
                    default="w-40,wl-25,none-16",
                    tooltip="Keys, a dash, a number of frames; commas between the parts. none holds still.",
                ),
                float_input(
                    "step",
                    (0.0, STEP, 100.0),
                    "World units a frame. The official value is 0.05. The model measures steps against the "
                    "longest one, so this value only counts next to another camera in a chain.",
                    step=0.01,
                    advanced=True,
                ),
                float_input(
                    "turn_deg",
                    (0.0, TURN_DEG, 45.0),
                    "Degrees a frame. The official value is 2.",
                    display_name="turn",
                    step=0.1,
                    advanced=True,
                ),
                fov_input(),
            ],
            outputs=camera_outputs(),
        )

    @classmethod
    def validate_inputs(cls, script):
        return validate(path_from_keys, script)

    @classmethod
    def execute(cls, script, step, turn_deg, fov_deg) -> io.NodeOutput:
        path = path_from_keys(script, step=step, turn_deg=turn_deg, fov_deg=fov_deg)
        return io.NodeOutput(path, len(path))


class LingBotWorldCameraKeyframes(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        views = io.Autogrow.TemplatePrefix(
            io.Load3DCamera.Input("camera", tooltip="A view of a 3D node, in the order of the path."), "camera", 1, 50
        )
        return io.Schema(
            node_id="LingBotWorldCameraKeyframes",
            display_name="LingBot-World Camera Keyframes",
            category=CATEGORY,
            description="A smooth camera path through views that you set up in ComfyUI's own 3D nodes (camera_info).",
            search_aliases=["lingbot", "load 3d camera", "spline", "camera_info", "keyframes"],
            inputs=[
                io.Autogrow.Input("cameras", template=views, tooltip="Views in the order of the path."),
                frames_input("Frames of the path. Rounded down to 4n+1."),
                choice_input(
                    "spacing",
                    ["even", "distance"],
                    "even: the same time between views. distance: more time where views lie further apart.",
                ),
                choice_input(
                    "turns",
                    ["smooth", "direct"],
                    "smooth: turning speed does not jump at a view (squad). direct: shortest arcs (slerp).",
                    advanced=True,
                ),
                easing_input(),
                fov_input(0.0, 0.0, " 0 takes the first view's own lens."),
            ],
            outputs=camera_outputs(),
        )

    @classmethod
    def execute(cls, cameras, frames, spacing, turns, easing, fov_deg) -> io.NodeOutput:
        check_given(cameras)
        views = list(cameras.values())
        options = {"spacing": spacing, "smooth_turns": turns == "smooth", "fov_deg": fov_deg or None}
        path = path_from_load3d(views, frame_count(frames), **options).eased(easing)
        return io.NodeOutput(path, len(path))


class LingBotWorldCameraChain(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        parts = io.Autogrow.TemplatePrefix(
            Camera.Input("camera", tooltip="A path that goes on where the one before it ends."), "camera", 1, 50
        )
        return io.Schema(
            node_id="LingBotWorldCameraChain",
            display_name="LingBot-World Camera Chain",
            category=CATEGORY,
            description="Camera paths one after the other, each starting where the last one ended; then reversed, "
            "looped, smoothed, eased or fitted to a number of frames.",
            search_aliases=["lingbot", "join cameras", "concatenate", "reverse", "loop", "retime", "smooth camera"],
            inputs=[
                io.Autogrow.Input("cameras", template=parts, tooltip="Paths in the order they are played."),
                frames_input(
                    "Frames to fit the whole chain into, rounded down to 4n+1. 0 keeps all frames.", 0, minimum=0
                ),
                io.Boolean.Input("reverse", default=False, tooltip="Play the chain backwards."),
                io.Boolean.Input("loop", default=False, tooltip="There and back again: ends where it began."),
                float_input(
                    "smooth",
                    (0.0, 0.0, 100.0),
                    "Frames over which corners and jitter are averaged; 4 rounds the joints of a chain.",
                    step=0.5,
                ),
                easing_input(),
            ],
            outputs=camera_outputs(),
        )

    @classmethod
    def execute(cls, cameras, frames, reverse, loop, smooth, easing) -> io.NodeOutput:
        check_given(cameras)
        path = chain(list(cameras.values()))
        path = path.reversed() if reverse else path
        path = path.looped() if loop else path
        path = path.for_video(frames or len(path)).smoothed(smooth).eased(easing)
        show_warning("", *lens_change(path.intrinsics))
        return io.NodeOutput(path, len(path))


class LingBotWorldCameraEditor(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldCameraEditor",
            display_name="LingBot-World Camera Editor",
            category=CATEGORY,
            description="Draw, drag or fly a camera path on the canvas.",
            search_aliases=["lingbot", "camera editor", "fly camera", "draw camera path", "keyframes", "trajectory"],
            inputs=[
                io.String.Input(
                    "path",
                    default=EMPTY_EDITOR,
                    multiline=True,
                    socketless=True,
                    extra_dict={"widgetType": "LINGBOT_CAMERA_EDITOR"},
                    tooltip="Keyframes of the path. Drag them in the views, or press F (R records) to fly with W A S D "
                    "and I J K L.",
                ),
                io.Image.Input(
                    "image", optional=True, tooltip="The first frame, shown in the editor where the camera starts."
                ),
            ],
            outputs=camera_outputs(),
            has_intermediate_output=True,  # ComfyUI shows the editor its first frame again when no node runs again
        )

    @classmethod
    def validate_inputs(cls, path):
        return validate(path_from_editor, path)

    @classmethod
    def execute(cls, path, image=None) -> io.NodeOutput:
        camera = path_from_editor(path)
        camera = camera[: frame_count(len(camera))]
        show_warnings(camera, len(camera))
        if image is None:
            return io.NodeOutput(camera, len(camera))
        name = "lingbot_world_first_frame"  # a temporary file, which the editor shows
        saved = ui.ImageSaveHelper.save_images(image[:1], name, io.FolderType.temp, None, compress_level=1)
        return io.NodeOutput(camera, len(camera), ui={"first_frame": saved})
