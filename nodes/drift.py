"""LingBotWorldMeasureDrift: when a video falls apart."""

from comfy_api.latest import io, ui

from ..camera.measure import opencv
from ..host.measure import measure_drift
from ..host.notice import show_text
from ..options import FPS
from .inputs import drawing_size, number
from .refusal import refusal


class LingBotWorldMeasureDrift(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldMeasureDrift",
            display_name="LingBot-World Measure Drift",
            category="LingBot-World",
            description="Says when a video falls apart: sharpness, colours, flicker, seams, repeats and frozen "
            "stretches over time. Needs opencv-python-headless.",
            search_aliases=["lingbot", "quality", "flicker", "sharpness", "blur", "colour shift", "seams"],
            is_output_node=True,
            inputs=[
                io.Image.Input("images", tooltip="The frames of the video, all of them."),
                number("fps", (1.0, float(FPS), 240.0), "Frames a second of the video."),
                *drawing_size(),
            ],
            outputs=[
                io.Image.Output("drawing", display_name="image", tooltip="Charts of all figures."),
                io.String.Output("report", tooltip="What was found, with its second, and a line for each second."),
            ],
        )

    @classmethod
    def validate_inputs(cls, fps):
        return refusal(opencv)  # a missing package is said before the video is made

    @classmethod
    def execute(cls, images, fps, width, height) -> io.NodeOutput:
        drawing, said, figures = measure_drift(images, fps, (width, height))
        show_text("\n".join(said))
        return io.NodeOutput(drawing, "\n".join([*said, *figures]), ui=ui.PreviewImage(drawing, cls=cls))
