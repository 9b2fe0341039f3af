"""The node that draws a camera path. The drawing also appears on the canvas before the prompt is queued."""

from comfy_api.latest import io, ui

from ...camera.advice import hints, warnings
from ...camera.origin_report import convention_warnings, report_origin
from ...host.files.camera import preview_image, show_warnings
from ...host.files.drawing import MOST_FRAMES
from ..inputs import CATEGORY, Camera, drawing_size_inputs, int_input


class LingBotWorldCameraPreview(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldCameraPreview",
            display_name="LingBot-World Camera Preview",
            category=CATEGORY,
            description="Draws a camera path from above, from the side and at an angle, next to the steps that the "
            "model receives. Lists what the model will not follow.",
            search_aliases=["lingbot", "show camera", "plot trajectory", "camera check", "visualize poses"],
            is_output_node=True,
            inputs=[
                Camera.Input("camera", tooltip="The camera path to draw."),
                io.Image.Input("image", optional=True, tooltip="The first frame, drawn where the camera starts."),
                int_input(
                    "frames",
                    (0, 0, MOST_FRAMES),
                    "Frames of the video, for a warning if the path is shorter. 0: as many as the path has.",
                ),
                *drawing_size_inputs(),
            ],
            outputs=[
                io.Image.Output("drawing", display_name="image", tooltip="The drawing."),
                io.String.Output(
                    "warnings",
                    tooltip="What the model will not follow, one line each; then hints; "
                    "then how the path's file was read.",
                ),
            ],
        )

    @classmethod
    def execute(cls, camera, frames, width, height, image=None) -> io.NodeOutput:
        frames = frames or len(camera)
        drawing, light = (preview_image(camera, image, frames, (width, height), light) for light in (False, True))
        show_warnings(camera, frames)
        lines = [*report_origin(camera, frames)]
        lines = *convention_warnings(camera), *warnings(camera, frames), *hints(camera, frames), *lines
        drawings = {"drawing": drawing, "light": light}  # the canvas shows the drawing that fits its theme
        previews = {name: ui.PreviewImage(image, cls=cls).values for name, image in drawings.items()}
        return io.NodeOutput(drawing, "\n".join(lines), ui=previews)
