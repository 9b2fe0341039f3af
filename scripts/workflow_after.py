"""The workflow that takes a finished video further: it goes on from its last frame, and is enlarged."""

from __future__ import annotations

from workflow_graph import PREVIEW_HEIGHT, Graph, Server
from workflow_parts import BLUE, DOWNLOAD, GREY, Parts

VIDEO = "my_video.mp4"


def go_on(server: Server) -> Graph:
    note = f"""## Go on from a video's last frame

Choose a video in **Load Video**. Its last frame is the new start image, the camera goes on from there, and both parts
are saved as one, enlarged. For smoother motion put ComfyUI's *Frame Interpolate* before *Create Video* and multiply
its fps; *Upscale Image (using Model)* in place of *Upscale Image By* adds detail.

{DOWNLOAD}"""
    parts = Parts(server, "go_on", note)
    with parts.graph.group("The video so far", 0, BLUE):
        video = parts.graph.add("LoadVideo", file=VIDEO, extra_height=PREVIEW_HEIGHT)["VIDEO"]
        frames = parts.graph.add("GetVideoComponents", collapsed=True, video=video)["IMAGE"]
        last = parts.graph.add("ImageFromBatch", title="Last frame", collapsed=True, image=frames, batch_index=-1)
        image = parts.prepare(last["IMAGE"])
    path = parts.camera("LingBotWorldCameraPreset", preset="pan_right")
    high, low, vae = parts.models()
    conditioning = parts.conditioned(parts.text(), image, vae, path)
    latent = parts.sample((high, low), conditioning)
    with parts.graph.group("Both parts, enlarged", 3, GREY):
        made = parts.graph.add("VAEDecode", collapsed=True, samples=latent, vae=vae)["IMAGE"]
        new = parts.graph.add("ImageFromBatch", title="Without the repeated frame", collapsed=True, image=made,
                              batch_index=1, length=4096)["IMAGE"]  # fmt: skip
        both = {"images.image0": frames, "images.image1": new}
        whole = parts.graph.add("BatchImagesNode", collapsed=True, **both)["IMAGE"]
        large = parts.graph.add("ImageScaleBy", upscale_method="lanczos", scale_by=2.0, image=whole)["IMAGE"]
        parts.video_file(large)
    return parts.graph
