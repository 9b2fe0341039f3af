"""LingBotWorldLive: a causal model's world that the user walks through on the canvas while it is generated."""

from comfy_api.latest import io

from ..host.files import folders
from ..host.prompt.notice import show_warning
from .inputs import (
    UNSET,
    Camera,
    State,
    choice,
    chunk_input,
    frames_input,
    kv_cache_input,
    latent_frames_input,
    seed_input,
    whole,
)
from .refusal import NamesToCheck, refusal
from .rollout import request

WAIT = 30
"""The default time that a run waits for a client, in seconds."""
VAE_ALONE = "the VAE"
ME, PATH = "me, or else the recorded path", "the recorded path"


class LingBotWorldLive(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldLive",
            display_name="LingBot-World Live",
            category="LingBot-World/sampling",
            description="Walk through the world while LingBot-World Fast or 2.0 makes it: press Run, then steer in the "
            "node's view by keys, mouse or gamepad, and Stop. The walk's frames, latent, state and camera path go on "
            "to other nodes.",
            search_aliases=["lingbot", "live", "walk", "realtime", "interactive", "game", "wasd", "world"],
            is_output_node=True,
            inputs=[
                io.Model.Input("model", tooltip="Load LingBot-World Causal Model; the 1.3B of 2.0 answers soonest."),
                io.Vae.Input("vae", tooltip="The VAE of Wan 2.1."),
                io.Conditioning.Input(
                    "positive", optional=True, tooltip="What the world shows at first, straight from a text node."
                ),
                io.Clip.Input(
                    "clip",
                    optional=True,
                    tooltip="A text encoder that stays: with it the prompt can be changed while you walk. Load "
                    "LingBot-World Text Encoder, or core's loader with umt5-xxl.",
                ),
                io.Image.Input(
                    "start_image",
                    display_name="start image",
                    optional=True,
                    tooltip="Where the walk begins, from Prepare Image; its size is the video's. Not needed where a "
                    "state is connected.",
                ),
                State.Input(
                    "state", optional=True, tooltip="What a Rollout or another walk has made: you go on from there."
                ),
                Camera.Input(
                    "camera",
                    display_name="recorded path",
                    optional=True,
                    tooltip="A path that is walked by itself, from its first pose to its last, where nobody opens the "
                    "view: for workflows that run without a canvas. `walked by` has it walked in any case.",
                ),
                io.String.Input(
                    "prompt",
                    multiline=True,
                    default="",
                    tooltip="What the world shows at first, where a clip is connected and no positive.",
                ),
                frames_input(
                    "The most frames that a walk makes, 16 a second; then it ends by itself. A frame of 832x480 takes "
                    "5 MB of memory as an image.",
                    default=961,
                    least=9,
                ),
                seed_input(
                    "The noise. While it stays, and all that is connected, Run keeps the walk, and the nodes behind it "
                    "can be tried again; another seed is another walk."
                ),
                choice(
                    "walked_by",
                    [ME, PATH],
                    "Who steers, where a recorded path is connected: whoever has the view open, or nobody.",
                ),
                chunk_input("Latent frames, of four frames each, made at a time: 1 answers soonest, more are faster."),
                latent_frames_input(
                    "window", f"Latent frames that a chunk looks back on. {UNSET}: as the model was trained, or 18."
                ),
                latent_frames_input(
                    "sink", f"Of the window, the walk's first latent frames. {UNSET}: as the model was trained, or 6."
                ),
                kv_cache_input("Where the keys and values of the frames before lie. auto: by what is free."),
                whole(
                    "wait",
                    (1, WAIT, 3600),
                    "Seconds in which somebody has to open the view, when the model is loaded; else the "
                    "recorded path is walked, or without one the run ends with a sentence.",
                    advanced=True,
                ),
                io.Boolean.Input(
                    "moving",
                    display_name="moves by itself",
                    default=False,
                    optional=True,
                    advanced=True,
                    tooltip="On: the world goes on while nobody presses anything, since things move in it. Off: it "
                    "waits as a still picture, which it would lose within seconds.",
                ),
                choice(
                    "decoder",
                    NamesToCheck([VAE_ALONE, *folders.tiny_decoder_choices()]),
                    "What decodes the frames that are seen: the VAE, or a tiny decoder (taew2_1) of models/vae_approx, "
                    "a preview in a fraction of the time. The images that the node hands out are the VAE's.",
                    optional=True,
                    advanced=True,
                ),
            ],
            outputs=[
                io.Image.Output("images", display_name="images", tooltip="The frames of the walk."),
                io.Latent.Output("latent", display_name="latent", tooltip="The latent of the whole video."),
                State.Output("out_state", display_name="state", tooltip="For a Rollout, or another walk, to go on."),
                Camera.Output(
                    "path",
                    display_name="camera path",
                    tooltip="The way that was walked, a pose a frame: the base model can render it again.",
                ),
                io.Int.Output("frame_count", display_name="frames", tooltip="Poses of the camera path."),
            ],
        )

    @classmethod
    def validate_inputs(cls, model=None):
        from ..host.checks.graph import check_rollout

        return refusal(check_rollout)

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
        from ..host.checks.text import unseen_words
        from ..host.sampling.live import first_prompt, prepare_live, run_live
        from ..host.sampling.live_view import live_view

        with live_view(wait) as view:
            first, text = first_prompt(positive, clip, prompt, state)
            run = prepare_live(
                model,
                first,
                request(frames, chunk, window, sink),
                image=start_image,
                state=state,
                path=camera,
                steered=camera is None or walked_by == ME,
                text=text,
                seed=seed,
                kv_cache=kv_cache,
                clip=clip,
                moving=moving,
                decoder=None if decoder == VAE_ALONE else decoder,
            )
            for words in (" ".join(run.rollout.notes), *unseen_words()):
                show_warning(words)
            made = run_live(run, vae, view)
        return io.NodeOutput(*made, len(made.camera))
