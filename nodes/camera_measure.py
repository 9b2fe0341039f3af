"""LingBotWorldMeasureCamera: whether a video follows its camera path."""

from comfy_api.latest import io, ui

from ..camera.measure import opencv
from ..host.camera import measure_image
from ..host.notice import show_text
from .camera_sockets import CATEGORY, Camera, drawing_size
from .refusal import refusal


class LingBotWorldMeasureCamera(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldMeasureCamera",
            display_name="LingBot-World Measure Camera",
            category=CATEGORY,
            description="Measures how well a video follows its camera path, from points followed "
            "in its pictures, and draws the path asked for beside the one found. Needs opencv-python-headless.",
            search_aliases=["lingbot", "camera error", "pose accuracy", "trajectory", "essential matrix", "follow"],
            is_output_node=True,
            inputs=[
                io.Image.Input("images", tooltip="The frames of the video, all of them."),
                Camera.Input("camera", tooltip="The camera path that the video was made with."),
                io.Int.Input(
                    "every",
                    default=0,
                    min=0,
                    max=10_000,
                    tooltip="Frames from one keyframe to the next. 0: eight, or fewer where the path turns fast.",
                ),
                *drawing_size(),
            ],
            outputs=[
                io.Image.Output("drawing", display_name="image", tooltip="The drawing."),
                io.String.Output("report", tooltip="The verdict, the noise floor and a line for each keyframe pair."),
            ],
        )

    @classmethod
    def validate_inputs(cls, every):
        return refusal(opencv)  # a missing package is said before the video is made

    @classmethod
    def execute(cls, images, camera, every, width, height) -> io.NodeOutput:
        drawing, verdict, figures = measure_image(images, camera, every, (width, height))
        show_text("\n".join(verdict))
        words = "\n".join([*verdict, *figures])
        return io.NodeOutput(drawing, words, ui=ui.PreviewImage(drawing, cls=cls))
