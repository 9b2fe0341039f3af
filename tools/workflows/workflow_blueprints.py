"""The base pipeline as one node, for ComfyUI's node library (subgraphs/), and workflows with it or after a video."""

from workflow_graph import Graph
from workflow_nodes import PREVIEW_HEIGHT, Inlet, Node, Output, Server
from workflow_parts import BLUE, DOWNLOAD, FPS, GREY, HUGGING_FACE, VIOLET, Parts, flight
from workflow_subgraph import Field, Subgraph

INSIDE = 101  # ids of the nodes inside, beyond all that stand beside them
FILES = (
    ("LingBotWorldLoadExperts", ("high_noise_expert", "low_noise_expert", "package")),
    ("LingBotWorldTextEncode", ("text_encoder",)),
    ("LingBotWorldLoadVAE", ("vae_name",)),
)
"""Fields that come last, because their defaults are usual."""


def along_a_path(server: Server) -> Subgraph:
    parts = Parts(server, "image_to_video_path", "", first=INSIDE)
    path = {"cameras.camera0": Inlet("camera"), "frames": 0}
    inlets = {"start image": "IMAGE", "camera": "LINGBOT_CAMERA"}
    text = "A start image, a prompt and a camera path become a video: LingBot-World's base model in one node. The path "
    text += "comes from any LingBot-World camera node."
    return _pipeline(parts, "LingBotWorldCameraChain", path, "path", text, inlets, ())


def everything_else(parts: Parts, image: Output, path: Node) -> Graph:
    parts.begin("Everything else", 3, BLUE)
    pipeline = along_a_path(parts.server)
    whole = pipeline.node(parts, **{"start image": image, "camera": path["camera"]})
    parts.save_video(whole["video"])
    return parts


def with_a_move(server: Server) -> Subgraph:
    parts = Parts(server, "image_to_video_move", "", first=INSIDE)
    text = "A start image, a prompt and a camera move by its name become a video: LingBot-World's base model in one "
    text += "node."
    moves = {"preset": "dolly_in"}
    return _pipeline(
        parts, "LingBotWorldCameraPreset", moves, "move", text, {"start image": "IMAGE"}, ("preset", "frames")
    )


def _pipeline(
    parts: Parts, camera: str, values: dict, by: str, text: str, inlets: dict[str, str], of_camera: tuple[str, ...]
) -> Subgraph:
    parts.begin("Start image", 0, BLUE)
    image = parts.prepare(Inlet("start image"))
    parts.begin("Camera path", 1, VIOLET)
    path = parts.add(camera, **values)
    high, low, vae = parts.models()
    latent = parts.sample((high, low), parts.conditioned(parts.text(), image, vae, path))
    parts.begin("Video", parts.column + 2, GREY)
    frames = parts.add("VAEDecode", samples=latent, vae=vae)["IMAGE"]
    video = parts.add("CreateVideo", images=frames, fps=FPS)["VIDEO"]
    nodes = {node.kind: node for node in parts.nodes}
    wished = [("LingBotWorldTextEncode", ("prompt",)), ("LingBotWorldPrepareImage", ("size", "width", "height"))]
    wished += [(camera, of_camera), ("LingBotWorldSampler", ("steps", "seed")), *FILES]
    fields = [Field(nodes[kind], widget) for kind, widgets in wished for widget in widgets]
    outlets = [("video", video), ("frames", frames)]
    return Subgraph(parts, f"Camera {by} to video (LingBot-World)", text, inlets, fields, outlets)


VIEW_HEIGHT = 300
BLUEPRINTS = (along_a_path, with_a_move)


def simple(server: Server) -> Graph:
    note = f"""## Four nodes

An image, a camera path that you draw, a prompt, a video. The whole base pipeline is in the node **Camera path to
video**; double-click its title to see it. **Camera move to video**, in the node library under *Subgraph Blueprints*,
takes a move by its name in place of a path.

{DOWNLOAD}
**Image**: choose yours in *Load Image*, then press **Run**.
"""
    parts = Parts(server, "simple", note)
    image = parts.load_image(1)
    path = parts.editor(image, flight())
    parts.begin("Everything else", 2, BLUE)
    whole = along_a_path(server).node(parts, **{"start image": image, "camera": path["camera"]})
    parts.begin("Video", 3, GREY)
    parts.save_video(whole["video"])
    return parts


VIEWS = {"First view": {"x": 0.0, "y": 1.6, "z": 8.0}, "Last view": {"x": 4.0, "y": 2.4, "z": 5.0}}
LOOK_AT, LENS = {"x": 0.0, "y": 1.2, "z": 0.0}, 51  # degrees up and down, the official examples' lens at 832x480


def views(server: Server) -> Graph:
    note = f"""## A camera that you place in 3D

Turn, move and zoom both views with the mouse: the video's camera begins at the first and ends at the last. Only the
movement between them counts; the first view stands for the camera of your image. Load a model of the scene in both, a
GLB or a Gaussian splat, or use the grid as the ground. For more views connect more *Load 3D (Advanced)* to *Camera
Keyframes*.

{DOWNLOAD}
**Image**: choose yours in *Load Image*, then press **Run**.
"""
    parts = Parts(server, "views", note)
    parts.begin("Views", 1, VIOLET)
    placed = [_view(parts, title, place) for title, place in VIEWS.items()]
    seen = {f"cameras.camera{index}": view["camera_info"] for index, view in enumerate(placed)}
    parts.begin("Path", 2, VIOLET)
    path = parts.add("LingBotWorldCameraKeyframes", frames=81, **seen)
    parts.preview(path)
    return everything_else(parts, parts.load_image(), path)


def _view(parts: Parts, title: str, position: dict[str, float]) -> Node:
    """A core 3D view: the API has its camera in a field, the canvas in a property."""
    state = {"position": position, "target": LOOK_AT, "zoom": 1, "cameraType": "perspective"}
    config = {"Camera Config": {"cameraType": "perspective", "fov": LENS, "state": state}}
    seen = {"camera_info": {**state, "fov": LENS}, "model_3d_info": []}
    node = parts.add(
        "Load3DAdvanced",
        title=title,
        extra_height=VIEW_HEIGHT,
        model_file="none",
        viewport_state=seen,
        width=832,
        height=480,
    )
    node.properties = config
    return node


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
