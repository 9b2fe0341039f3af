"""Workflows that follow a video: continue from its last frame, enlarge it, smooth it."""

from workflow_blueprints import with_a_move
from workflow_graph import Graph
from workflow_nodes import PREVIEW_HEIGHT, Output, Server
from workflow_parts import BLUE, DOWNLOAD, FPS, GREY, HUGGING_FACE, VIOLET, Parts

VIDEO = "my_video.mp4"
UPSCALER, UPSCALERS = "RealESRGAN_x4plus.safetensors", "Comfy-Org/Real-ESRGAN_repackaged/resolve/main"
BETWEEN, BETWEENS = "film_net_fp16.safetensors", "Comfy-Org/frame_interpolation/resolve/main/frame_interpolation"


def go_on(server: Server) -> Graph:
    note = f"""## Go on from a video's last frame

Choose a video in **Load Video**. Its last frame is the new start image, the camera goes on from there, and both parts
are saved as one, enlarged. The template *Larger and smoother* has ComfyUI's models for detail and for frames between.

{DOWNLOAD}"""
    parts = Parts(server, "go_on", note, note_width=420)
    parts.begin("The video so far", 0, BLUE)
    video = parts.add("LoadVideo", file=VIDEO, extra_height=PREVIEW_HEIGHT, room=50)["VIDEO"]
    frames = parts.add("GetVideoComponents", collapsed=True, video=video)["IMAGE"]
    last = parts.add("ImageFromBatch", title="Last frame", collapsed=True, image=frames, batch_index=-1)
    image = parts.prepare(last["IMAGE"])
    path = parts.camera("LingBotWorldCameraPreset", preset="pan_right")
    high, low, vae = parts.models()
    conditioning = parts.conditioned(parts.text(), image, vae, path)
    latent = parts.sample((high, low), conditioning)
    parts.begin("Both parts, enlarged", 3, GREY)
    made = parts.add("VAEDecode", collapsed=True, samples=latent, vae=vae)["IMAGE"]
    new = parts.add(
        "ImageFromBatch", title="Without the repeated frame", collapsed=True, image=made, batch_index=1, length=4096
    )["IMAGE"]
    both = {"images.image0": frames, "images.image1": new}
    whole = parts.add("BatchImagesNode", collapsed=True, **both)["IMAGE"]
    twice = {"title": "Twice as large", "collapsed": True, "upscale_method": "lanczos", "scale_by": 2.0}
    large = parts.add("ImageScaleBy", image=whole, **twice)["IMAGE"]
    parts.video_file(large)
    return parts


def larger(server: Server) -> Graph:
    note = f"""## Twice as large, twice as smooth

The frames of the node **Camera move to video** go through ComfyUI's own nodes: Real-ESRGAN adds detail (four times as
large, then halved, as twice is enough), FILM puts a frame between every two. 81 frames take 7 GB of host memory there.

{DOWNLOAD}
**Real-ESRGAN and FILM** are in ComfyUI's list of missing models too. To leave one out, select its nodes and press
Ctrl-B; without FILM set *fps* of *Create Video* to 16.
"""
    parts = Parts(server, "larger", note)
    image = parts.load_image(1)
    parts.begin("The video", 1, BLUE)
    made = with_a_move(server).node(parts, **{"start image": image})
    frames = _between(parts, _larger(parts, made["frames"]))
    parts.begin("Video", 3, GREY)
    parts.video_file(frames, fps=2 * FPS)
    return parts


def _larger(parts: Parts, frames: Output) -> Output:
    offer = parts.offer(UPSCALER, UPSCALER, "upscale_models", f"{HUGGING_FACE}/{UPSCALERS}")
    parts.begin("Twice as large", 2, VIOLET)
    model = parts.add("UpscaleModelLoader", model_name=UPSCALER, models=offer)["UPSCALE_MODEL"]
    large = parts.add("ImageUpscaleWithModel", upscale_model=model, image=frames)["IMAGE"]
    return parts.add("ImageScaleBy", upscale_method="area", scale_by=0.5, image=large)["IMAGE"]


def _between(parts: Parts, frames: Output) -> Output:
    offer = parts.offer(BETWEEN, BETWEEN, "frame_interpolation", f"{HUGGING_FACE}/{BETWEENS}")
    parts.begin("Twice as smooth", 2, VIOLET)
    model = parts.add("FrameInterpolationModelLoader", model_name=BETWEEN, models=offer)["INTERP_MODEL"]
    return parts.add("FrameInterpolate", interp_model=model, images=frames, multiplier=2)["IMAGE"]
