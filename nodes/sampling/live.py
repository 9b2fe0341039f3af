"""The node that generates a causal model's video while the user moves through it on the canvas."""

from comfy_api.latest import io, ui

from ...host.files import folders
from ...host.prompt.notice import show_warning
from ..inputs import (
    UNSET,
    Camera,
    State,
    choice_input,
    chunk_input,
    frames_input,
    int_input,
    kv_cache_input,
    latent_frames_input,
    seed_input,
)
from ..validation import NamesToCheck, validate
from .rollout import make_request

WAIT = 30
"""The seconds that a run waits, by default, for the page in the browser to connect."""
VAE_ALONE = "the VAE"
USER, PATH = "me, or else the recorded path", "the recorded path"


class LingBotWorldLive(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldLive",
            display_name="LingBot-World Live",
            category="LingBot-World/sampling",
            description="Walk through the world while LingBot-World Fast or 2.0 makes it: press Run, steer in the "
            "node's view by keys, mouse or gamepad, then press Stop. The outputs are the walk's frames, latent, "
            "state and camera path.",
            search_aliases=["lingbot", "live", "walk", "realtime", "interactive", "game", "wasd", "world"],
            is_output_node=True,
            inputs=[
                io.Model.Input("model", tooltip="Load LingBot-World Causal Model; the 1.3B of 2.0 responds fastest."),
                io.Vae.Input("vae", tooltip="The VAE of Wan 2.1."),
                io.Conditioning.Input(
                    "positive", optional=True, tooltip="What the world shows at first, directly from a text node."
                ),
                io.Clip.Input(
                    "clip",
                    optional=True,
                    tooltip="A text encoder, so that you can change the prompt while you walk: from Load "
                    "LingBot-World Text Encoder, or core's loader with umt5-xxl.",
                ),
                io.Image.Input(
                    "start_image",
                    display_name="start image",
                    optional=True,
                    tooltip="Where the walk begins, from Prepare Image; its size is the video's. Not needed if a "
                    "state is connected.",
                ),
                State.Input(
                    "state", optional=True, tooltip="The state of a Rollout or another walk: you continue from there."
                ),
                Camera.Input(
                    "camera",
                    display_name="recorded path",
                    optional=True,
                    tooltip="A path that the camera follows if nobody opens the view, for workflows that run without a "
                    "canvas. With `walked by` you choose it in any case.",
                ),
                io.String.Input(
                    "prompt",
                    multiline=True,
                    default="",
                    tooltip="What the world shows at first, if clip is connected and positive is not.",
                ),
                frames_input(
                    "The most frames that a walk makes, 16 per second; then the walk ends. A frame of 832x480 takes "
                    "5 MB of memory as an image.",
                    default=961,
                    minimum=9,
                ),
                seed_input(
                    "The noise. While the seed and the connected inputs stay, Run keeps the walk, and the nodes "
                    "after it can be tried again. Another seed is another walk."
                ),
                choice_input(
                    "walked_by",
                    [USER, PATH],
                    "Who steers if a recorded path is connected: whoever has the view open, or nobody.",
                ),
                chunk_input(
                    "Latent frames (four frames each) per chunk: 1 responds fastest, larger chunks cost less per frame."
                ),
                latent_frames_input(
                    "window",
                    f"Latent frames that a chunk attends to. {UNSET}: as the model was trained, and 18 if it has no "
                    "window.",
                ),
                latent_frames_input(
                    "sink",
                    f"The walk's first latent frames, which always stay in the window. {UNSET}: as the model was "
                    "trained, and 6 if it has no window.",
                ),
                kv_cache_input("Where the keys and values of earlier frames are kept. auto: by free memory."),
                int_input(
                    "wait",
                    (1, WAIT, 3600),
                    "Seconds that a run waits for the view to be opened, once the model is loaded. Then the camera "
                    "follows the recorded path; without a path the run ends with a message.",
                    advanced=True,
                ),
                io.Boolean.Input(
                    "moving",
                    display_name="moves by itself",
                    default=False,
                    optional=True,
                    advanced=True,
                    tooltip="On: the video goes on while you press nothing, for scenes in which things move. Off: the "
                    "walk pauses, because a scene that stands still degrades within seconds.",
                ),
                choice_input(
                    "decoder",
                    NamesToCheck([VAE_ALONE, *folders.tiny_decoder_choices()]),
                    "What decodes the frames in the view: the VAE, or a tiny decoder (taew2_1) of models/vae_approx, "
                    "which previews in a fraction of the time. The output images always come from the VAE.",
                    optional=True,
                    advanced=True,
                ),
            ],
            outputs=[
                io.Image.Output("images", display_name="images", tooltip="The frames of the walk."),
                io.Latent.Output("latent", display_name="latent", tooltip="The latent of the whole video."),
                State.Output(
                    "out_state", display_name="state", tooltip="For a Rollout or another walk that continues from here."
                ),
                Camera.Output(
                    "path",
                    display_name="camera path",
                    tooltip="The camera path of the walk, one pose per frame: the base model can render it again.",
                ),
                io.Int.Output("frame_count", display_name="frames", tooltip="Poses of the camera path."),
            ],
        )

    @classmethod
    def validate_inputs(cls, model=None):
        from ...host.checks.graph import check_rollout

        return validate(check_rollout)

    @classmethod
    def execute(
        cls,
        model,
        vae,
        prompt,
        frames,
        seed,
        walked_by,
        chunk,
        window,
        sink,
        kv_cache,
        wait,
        positive=None,
        clip=None,
        start_image=None,
        state=None,
        camera=None,
        moving=False,
        decoder=VAE_ALONE,
    ) -> io.NodeOutput:
        from ...host.checks.images import image_file_warnings
        from ...host.checks.text import text_node_warnings
        from ...host.sampling.live import first_prompt, prepare_live, run_live
        from ...host.sampling.live_view import live_view

        with live_view(wait) as view:
            if start_image is not None:
                name = "lingbot_world_start"  # a temporary file, which the view shows until the first chunk is made
                saved = ui.ImageSaveHelper.save_images(
                    start_image[:1], name, io.FolderType.temp, None, compress_level=1
                )
                view.show_start(saved[0], (start_image.shape[2], start_image.shape[1]))
            first, text = first_prompt(positive, clip, prompt, state)
            run = prepare_live(
                model,
                first,
                make_request(frames, chunk, window, sink),
                image=start_image,
                state=state,
                path=camera,
                steered=camera is None or walked_by == USER,
                text=text,
                seed=seed,
                kv_cache=kv_cache,
                clip=clip,
                moving=moving,
                decoder=None if decoder == VAE_ALONE else decoder,
            )
            show_warning(
                " ".join(run.rollout.notes), *text_node_warnings(), *image_file_warnings(start_image, "start_image")
            )
            made = run_live(run, vae, view)
        return io.NodeOutput(*made, len(made.camera))
