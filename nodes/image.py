"""The node that resizes a start image to the size of the video."""

from comfy_api.latest import io

from ..host.files.image import EXPLICIT, FITS, SIZES, check_size, fit_image, target_geometry
from ..host.prompt.notice import show_warning
from ..pipeline.geometry import LARGEST_SIDE, STEP
from .inputs import choice_input, int_input
from .validation import validate


def _side(name: str, pixels: int) -> io.Int.Input:
    tooltip = f"{name.title()} of the video in pixels. Used when size is '{EXPLICIT}'."
    return int_input(name, (STEP, pixels, LARGEST_SIDE), tooltip, step=STEP)


class LingBotWorldPrepareImage(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldPrepareImage",
            display_name="LingBot-World Prepare Image",
            category="LingBot-World",
            description="Resizes the start image to a size that the model supports, as the official code does. "
            "Connect image, width and height to WanImageToVideo.",
            search_aliases=["lingbot", "first frame", "start image", "resize image", "video size", "max area"],
            inputs=[
                io.Image.Input("image", tooltip="The image that the video starts from."),
                choice_input(
                    "size",
                    SIZES,
                    "Width x height in pixels. In the image's shape: about as many pixels, in the image's own aspect "
                    "ratio, with sides rounded down to multiples of 16 as in the official code. 16:9, 9:16 and 1:1: "
                    f"exactly this size; see fit. '{EXPLICIT}': the two numbers below.",
                ),
                _side("width", 832),
                _side("height", 480),
                choice_input(
                    "fit",
                    FITS,
                    "stretch: the official resize, bicubic and without a crop. crop: fill the frame and cut "
                    "off the rest. pad: show the whole image on black.",
                ),
            ],
            outputs=[
                io.Image.Output("resized", display_name="image", tooltip="The image at the size of the video."),
                io.Int.Output("out_width", display_name="width", tooltip="Width of the video in pixels."),
                io.Int.Output("out_height", display_name="height", tooltip="Height of the video in pixels."),
            ],
        )

    @classmethod
    def validate_inputs(cls, size):
        return validate(check_size, size)  # also accepts the names of earlier workflows

    @classmethod
    def execute(cls, image, size, width, height, fit) -> io.NodeOutput:
        from ..host.checks.images import image_file_warnings

        show_warning("", *image_file_warnings(image, "image"))
        geometry = target_geometry(image, size, width, height)
        return io.NodeOutput(fit_image(image, geometry, fit), geometry.width, geometry.height)
