"""The nodes that measure a finished video: its camera path, the path's error, and the drift in quality."""

from comfy_api.latest import io, ui

from ..host.files.measure import measure_drift, measure_image, path_of_video
from ..host.prompt.notice import show_text
from ..measure import opencv, pycolmap
from ..options import FPS
from .inputs import CATEGORY, Camera, camera_outputs, drawing_size_inputs, float_input, fov_input, int_input
from .validation import validate


class LingBotWorldMeasureCamera(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldMeasureCamera",
            display_name="LingBot-World Measure Camera",
            category=CATEGORY,
            description="Measures how well a video follows its camera path by tracking points through its frames, and "
            "draws the given path next to the measured one. Needs opencv-python-headless and pycolmap.",
            search_aliases=["lingbot", "camera error", "pose accuracy", "trajectory", "essential matrix", "follow"],
            is_output_node=True,
            inputs=[
                io.Image.Input("images", tooltip="The frames of the video, all of them."),
                Camera.Input("camera", tooltip="The camera path that the video was made with."),
                int_input("every", (0, 0, 10_000), "Frames between the two keyframes of a pair. 0: 8."),
                *drawing_size_inputs(),
            ],
            outputs=[
                io.Image.Output("drawing", display_name="image", tooltip="The drawing."),
                io.String.Output("report", tooltip="The verdict, RotErr, TransErr and a line for each pair."),
            ],
        )

    @classmethod
    def validate_inputs(cls, every):
        return validate(_check_libraries)  # reports a missing package before the video is made

    @classmethod
    def execute(cls, images, camera, every, width, height) -> io.NodeOutput:
        drawing, verdict, figures = measure_image(images, camera, every, (width, height))
        show_text("\n".join(verdict))
        return io.NodeOutput(drawing, "\n".join([*verdict, *figures]), ui=ui.PreviewImage(drawing, cls=cls))


class LingBotWorldCameraFromVideo(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldCameraFromVideo",
            display_name="LingBot-World Camera from Video",
            category=CATEGORY,
            description="Estimates the camera path of a video from its frames. Needs "
            "opencv-python-headless and pycolmap.",
            search_aliases=["lingbot", "camera tracking", "structure from motion", "colmap", "glomap", "match move"],
            inputs=[
                io.Image.Input("images", tooltip="The frames of the video, all of them."),
                fov_input(0.0, 0.0, " 0: estimated if the video allows it, else 79."),
            ],
            outputs=camera_outputs(
                io.String.Output("notes", tooltip="How much was found, and what scale, axes and lens the path has.")
            ),
        )

    @classmethod
    def validate_inputs(cls, fov_deg):
        return validate(_check_libraries)

    @classmethod
    def execute(cls, images, fov_deg) -> io.NodeOutput:
        path, notes = path_of_video(images, fov_deg)
        show_text("\n".join(notes))
        return io.NodeOutput(path, len(path), "\n".join(notes))


class LingBotWorldMeasureDrift(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldMeasureDrift",
            display_name="LingBot-World Measure Drift",
            category="LingBot-World",
            description="Shows when a video degrades: sharpness, colours, flicker, seams, repeats and frozen "
            "stretches over time. Needs opencv-python-headless.",
            search_aliases=["lingbot", "quality", "flicker", "sharpness", "blur", "colour shift", "seams"],
            is_output_node=True,
            inputs=[
                io.Image.Input("images", tooltip="The frames of the video, all of them."),
                float_input("fps", (1.0, float(FPS), 240.0), "Frames per second of the video."),
                *drawing_size_inputs(),
            ],
            outputs=[
                io.Image.Output("drawing", display_name="image", tooltip="Charts of all figures."),
                io.String.Output("report", tooltip="Each finding with its time, and a line for each second."),
            ],
        )

    @classmethod
    def validate_inputs(cls, fps):
        return validate(opencv)  # reports a missing package before the video is made

    @classmethod
    def execute(cls, images, fps, width, height) -> io.NodeOutput:
        drawing, faults, figures = measure_drift(images, fps, (width, height))
        show_text("\n".join(faults))
        return io.NodeOutput(drawing, "\n".join([*faults, *figures]), ui=ui.PreviewImage(drawing, cls=cls))


def _check_libraries() -> None:
    opencv(), pycolmap()
