"""LingBotWorldPrepareImage: the first frame at the size of the video."""

from comfy_api.latest import io

from ..host.image import AREAS, EXPLICIT, FITS, fit_image, target_geometry


class LingBotWorldPrepareImage(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldPrepareImage",
            display_name="LingBot-World Prepare Image",
            category="LingBot-World",
            description="Resizes the start image to a size that the model can film, the way the official code does. "
            "Wire the image, width and height on to WanImageToVideo.",
            search_aliases=["lingbot", "first frame", "start image", "resize image", "video size", "max area"],
            inputs=[
                io.Image.Input("image", tooltip="The image that the video starts from."),
                io.Combo.Input(
                    "size",
                    options=[*AREAS, EXPLICIT],
                    default="480*832",
                    tooltip="An area in pixels: height and width then follow the image's own aspect ratio, floored to "
                    f"multiples of 16. With '{EXPLICIT}' the two numbers below count.",
                ),
                io.Int.Input(
                    "width",
                    default=832,
                    min=16,
                    max=8192,
                    step=16,
                    tooltip=f"Width of the video in pixels. Used when size is '{EXPLICIT}'.",
                ),
                io.Int.Input(
                    "height",
                    default=480,
                    min=16,
                    max=8192,
                    step=16,
                    tooltip=f"Height of the video in pixels. Used when size is '{EXPLICIT}'.",
                ),
                io.Combo.Input(
                    "fit",
                    options=list(FITS),
                    default="stretch",
                    tooltip="stretch: the official resize, bicubic and without a crop. crop: fill the frame and cut "
                    "what is outside. pad: show the whole image on black.",
                ),
            ],
            outputs=[
                io.Image.Output("resized", display_name="image", tooltip="The image at the size of the video."),
                io.Int.Output("out_width", display_name="width", tooltip="Width of the video in pixels."),
                io.Int.Output("out_height", display_name="height", tooltip="Height of the video in pixels."),
            ],
        )

    @classmethod
    def execute(cls, image, size, width, height, fit) -> io.NodeOutput:
        geometry = target_geometry(image, size, width, height)
        return io.NodeOutput(fit_image(image, geometry, fit), geometry.width, geometry.height)
