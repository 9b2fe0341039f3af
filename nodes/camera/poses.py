"""The nodes that read a camera path from pose files, and that add a camera path to a CONDITIONING."""

from pathlib import Path

from comfy_api.latest import io

from ...host.files import camera as host
from ...host.prompt.queue import known_inputs
from ..inputs import CATEGORY, Camera, camera_outputs, choice_input, frames_input, int_input, upload_to
from ..validation import fingerprint_of, validate


def _files_of(poses: str, lens: str) -> list[Path]:
    return [file for file in host.pose_files(poses, lens) if file is not None and file.is_file()]


class LingBotWorldLoadPoses(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        choices = host.pose_choices()
        return io.Schema(
            node_id="LingBotWorldLoadPoses",
            display_name="Load LingBot-World Poses",
            category=CATEGORY,
            description="Opens a camera path as the official examples store it: poses.npy (camera-to-world, OpenCV "
            "axes) and intrinsics.npy (fx, fy, cx, cy at 832x480). A short file shortens the video: connect frames.",
            search_aliases=["lingbot", "camera path", "poses.npy", "intrinsics.npy", "trajectory", "extrinsics"],
            inputs=[
                choice_input(
                    "poses",
                    choices,
                    "A folder with poses.npy, or a pose file, in ComfyUI's input folder or in a package. "
                    "Files, a folder or a zip can be dropped on the node.",
                    extra_dict=upload_to("poses"),
                    default=None,
                ),
                choice_input(
                    "lens",
                    host.lens_choices(),
                    "Where the lens comes from: intrinsics.npy next to the poses, the official examples' lens, "
                    "or another file.",
                    advanced=True,
                ),
                frames_input("Frames of the video. Rounded down to 4n+1, at most the poses of the file."),
                int_input("start", (0, 0, 100_000), "The first pose to use, counted from 0.", advanced=True),
            ],
            outputs=camera_outputs(),
        )

    @classmethod
    def validate_inputs(cls, poses):
        known = known_inputs()
        return validate(host.check_poses, poses, known.get("lens", host.DEFAULT_LENS), known.get("start", 0))

    @classmethod
    def fingerprint_inputs(cls, poses, lens, frames, start):
        return f"{fingerprint_of(_files_of, poses, lens)};{frames};{start}"

    @classmethod
    def execute(cls, poses, lens, frames, start) -> io.NodeOutput:
        path = host.load_path(poses, lens, frames, start)
        return io.NodeOutput(path, len(path))


class LingBotWorldApplyCamera(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldApplyCamera",
            display_name="Apply LingBot-World Camera",
            category=CATEGORY,
            description="Adds a camera path to the prompt and the negative prompt: a ray for every pixel of every "
            "latent frame, at the size of the latent.",
            search_aliases=["lingbot", "camera control", "plucker", "apply camera", "camera conditioning"],
            inputs=[
                io.Conditioning.Input("positive", tooltip="The prompt, from WanImageToVideo."),
                io.Conditioning.Input("negative", tooltip="The negative prompt, from WanImageToVideo."),
                Camera.Input("camera", tooltip="The camera path, with as many frames as the latent."),
                io.Latent.Input("latent", tooltip="The video latent of WanImageToVideo; only its size is used."),
                choice_input(
                    "control",
                    [host.CAMERA_CONTROL, host.ACTION_CONTROL],
                    "camera: for base-cam checkpoints. action: for base-act checkpoints, which also take the "
                    "held keys; the path must come from Camera Keys or have an action.npy.",
                    advanced=True,
                ),
            ],
            outputs=[
                io.Conditioning.Output("out_positive", display_name="positive", tooltip="The prompt with the camera."),
                io.Conditioning.Output(
                    "out_negative", display_name="negative", tooltip="The negative prompt with the same camera."
                ),
            ],
        )

    @classmethod
    def validate_inputs(cls, camera=None):
        return validate(host.check_camera_fits)

    @classmethod
    def execute(cls, positive, negative, camera, latent, control) -> io.NodeOutput:
        embedding = host.camera_embedding_for(camera, latent, control)
        host.show_warnings(camera, len(camera))
        return io.NodeOutput(host.add_camera(positive, embedding), host.add_camera(negative, embedding))
