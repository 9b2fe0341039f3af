"""The node that exports a video and its camera path as a scene for nerfstudio, COLMAP and 3D viewers."""

from comfy_api.latest import io

from ...export import FORMATS
from ...host.files.export import check_export, export_images
from ...host.prompt.notice import show_text
from ..inputs import CATEGORY, Camera, choice_input, int_input
from ..validation import validate


class LingBotWorldExport3D(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldExport3D",
            display_name="LingBot-World Export for 3D",
            category=CATEGORY,
            description="Writes a video as a scene for nerfstudio or COLMAP, or as a point cloud: the sharpest frames, "
            "their exact poses and lens, and sparse points. The report shows how far the world agrees with itself. "
            "Points need opencv-python-headless and pycolmap.",
            search_aliases=["lingbot", "nerfstudio", "colmap", "gaussian splat", "point cloud", "ply", "nerf"],
            is_output_node=True,
            inputs=[
                io.Image.Input("images", tooltip="The frames of the video, all of them."),
                Camera.Input("camera", tooltip="The camera path that the video was made with: a pose for each frame."),
                choice_input(
                    "format",
                    FORMATS,
                    "nerfstudio: images, transforms.json and points.ply. colmap: images and a model in sparse/0. ply: "
                    "points.ply alone.",
                ),
                int_input("every", (1, 4, 1000), "The sharpest of this many frames is exported, unless it is blurred."),
                io.Boolean.Input(
                    "points",
                    default=True,
                    tooltip="Triangulate points that are tracked through the frames. Off: frames and poses only, in "
                    "seconds and without further packages.",
                ),
                io.String.Input(
                    "filename_prefix",
                    display_name="filename prefix",
                    default="3d/LingBot-World",
                    tooltip="The beginning of the new folder's name in ComfyUI's output folder. A number is added; "
                    "nothing is overwritten.",
                ),
            ],
            outputs=[
                io.String.Output("folder", tooltip="The new folder."),
                io.File3DPLY.Output(
                    "point_cloud",
                    display_name="point cloud",
                    tooltip="The points and, in red, the cameras with y up, for Preview Point Cloud. Without points "
                    "the nodes after it do not run.",
                ),
                io.Load3DCamera.Output(
                    "camera_info",
                    display_name="first camera",
                    tooltip="A view from above and behind the first exported camera, for the preview's camera_info.",
                ),
                io.String.Output("report", tooltip="The counts, and a line for each second of the video."),
            ],
        )

    @classmethod
    def validate_inputs(cls, filename_prefix, points, format):
        return validate(check_export, filename_prefix, points, format)

    @classmethod
    def execute(cls, images, camera, format, every, points, filename_prefix) -> io.NodeOutput:
        folder, cloud, view, report = export_images(images, camera, format, every, points, filename_prefix)
        show_text("\n".join(report))
        return io.NodeOutput(folder, cloud, view, "\n".join(report))
