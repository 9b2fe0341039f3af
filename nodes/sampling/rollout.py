"""The node that makes a causal model's video chunk by chunk, from an image or from an earlier run's state."""

from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from ...errors import InputError
from ...host.prompt.notice import show_warning
from ...host.prompt.queue import known_inputs
from ...options import CAUSAL_SHIFT, FAST_INDICES, GUIDE_SCALE, RELEASES, V2_INDICES
from ...options import STEPS as GUIDED_STEPS
from ..inputs import (
    AS_TRAINED,
    UNSET,
    Camera,
    State,
    choice_input,
    chunk_input,
    float_input,
    frames_input,
    int_input,
    kv_cache_input,
    latent_frames_input,
    seed_input,
)
from ..validation import validate

if TYPE_CHECKING:
    from ...pipeline.spec import RolloutRequest

CUSTOM = "custom"
STEPS = {AS_TRAINED: None, "Fast": FAST_INDICES, "2.0": V2_INDICES}
RELEASE_SHIFT = 0.0
"""The value of the input `shift` that selects the default shift of the model's release."""


def make_request(frames: int, chunk: str, window: int, sink: int, **others: Any) -> "RolloutRequest":
    """Return the RolloutRequest for a node's inputs. AS_TRAINED and UNSET become None, which selects the default."""
    from ...pipeline.spec import RolloutRequest

    return RolloutRequest(
        frames=frames,
        chunk=None if chunk == AS_TRAINED else int(chunk),
        window=None if window == UNSET else window,
        sink=None if sink == UNSET else sink,
        **others,
    )


class LingBotWorldRollout(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        v2 = RELEASES["v2"]
        return io.Schema(
            node_id="LingBotWorldRollout",
            display_name="LingBot-World Rollout",
            category="LingBot-World/sampling",
            description="Makes a video with LingBot-World Fast or 2.0, a few latent frames at a time, for as long as "
            "you like. The newest frame is shown after every chunk. Connect the state to another Rollout to "
            "continue with another camera and prompt.",
            search_aliases=[
                "lingbot",
                "fast",
                "causal",
                "autoregressive",
                "sampler",
                "long video",
                "infinite",
                "world",
            ],
            inputs=[
                io.Model.Input("model", tooltip="Load LingBot-World Causal Model, with its LoRAs if you use any."),
                io.Conditioning.Input("positive", tooltip="The prompt, directly from the text node."),
                io.Vae.Input("vae", tooltip="The VAE of Wan 2.1."),
                io.Image.Input(
                    "start_image",
                    display_name="start image",
                    optional=True,
                    tooltip="The video's first frame, from Prepare Image; its size is the video's. Not needed if a "
                    "state is connected.",
                ),
                Camera.Input(
                    "camera",
                    optional=True,
                    tooltip="The camera path of these frames. Without one the camera stands still.",
                ),
                State.Input(
                    "state",
                    optional=True,
                    tooltip="The state of another Rollout: the video continues from there, with this camera and "
                    "prompt.",
                ),
                io.Latent.Input(
                    "start_latent",
                    display_name="start latent",
                    optional=True,
                    tooltip="In place of a start image: the video begins with the last frame of this video. A state "
                    "keeps more of it.",
                ),
                frames_input(
                    "Frames to make, in whole chunks: with three latent frames per chunk 9, 21, 33, ... 81, and 12 "
                    "more for each further chunk. A shorter camera path shortens the video.",
                    minimum=9,
                ),
                seed_input(
                    "The noise to start from. The same seed gives the same video. While the seed stays, a shot "
                    "is kept, and the shots that continue it can be tried again."
                ),
                choice_input(
                    "steps",
                    [*STEPS, CUSTOM],
                    f"The steps of a chunk. Fast: {_joined(FAST_INDICES)}. 2.0: {_joined(V2_INDICES)}. The "
                    f"folder's name shows which the model was trained for. {CUSTOM}: the indices below.",
                ),
                float_input(
                    "shift",
                    (RELEASE_SHIFT, RELEASE_SHIFT, 100.0),
                    "Moves the steps towards strong noise. 0: the model's own, which is 10 for Fast and 2.0 "
                    "14B, 5 for 2.0 1.3B.",
                    step=0.1,
                    round=0.0001,
                ),
                io.String.Input(
                    "indices",
                    default=_joined(V2_INDICES),
                    advanced=True,
                    tooltip=f"For steps {CUSTOM}: rising numbers from 0 to 999, of the schedule of 1,000 steps.",
                ),
                latent_frames_input(
                    "window",
                    "Latent frames (four frames each) that a chunk attends to, itself included. 0: the whole video, "
                    f"which takes more and more memory. {UNSET}: as the model was trained (2.0: {v2.window.frames}).",
                ),
                latent_frames_input(
                    "sink",
                    f"The video's first latent frames, which always stay in the window. {UNSET}: as the model was "
                    f"trained (2.0: {v2.window.sink}).",
                ),
                kv_cache_input(
                    "Where the keys and values of earlier frames are kept. gpu: on the GPU; 8bit: there in half the "
                    "memory, for nearly the same video; host: in host memory, for the same video. auto: by free memory."
                ),
                chunk_input(
                    "Latent frames (four frames each) per chunk. Larger chunks cost less per frame. A state continues "
                    "in chunks of its own size.",
                    advanced=True,
                    optional=True,  # prompts and workflows of earlier versions lack it
                ),
                int_input(
                    "guided_steps",
                    (1, GUIDED_STEPS, 1000),
                    "For causal-pretrain only: the number of steps of each chunk, in place of `steps`.",
                    optional=True,  # prompts and workflows of earlier versions lack it
                    advanced=True,
                ),
                float_input(
                    "guide_scale",
                    (0.0, GUIDE_SCALE, 100.0),
                    "For causal-pretrain only: how far to go from the negative prompt to the prompt. 1 leaves the "
                    "negative prompt out and halves the time.",
                    display_name="guidance scale",
                    step=0.1,
                    optional=True,  # prompts and workflows of earlier versions lack it
                    advanced=True,
                ),
                io.Conditioning.Input(
                    "negative",
                    optional=True,
                    tooltip="For causal-pretrain only: the negative prompt, directly from the text node.",
                ),
            ],
            outputs=[
                io.Latent.Output(
                    "latent", display_name="latent", tooltip="The latent of the whole video, from its first frame on."
                ),
                io.Image.Output("images", display_name="images", tooltip="The frames that this node made."),
                State.Output(
                    "out_state", display_name="state", tooltip="For another Rollout that continues from here."
                ),
            ],
        )

    @classmethod
    def validate_inputs(cls, model=None):
        return validate(_check)

    @classmethod
    def execute(
        cls,
        model,
        positive,
        vae,
        frames,
        seed,
        steps,
        shift,
        indices,
        window,
        sink,
        kv_cache,
        chunk=AS_TRAINED,
        guided_steps=GUIDED_STEPS,
        guide_scale=GUIDE_SCALE,
        start_image=None,
        camera=None,
        state=None,
        start_latent=None,
        negative=None,
    ) -> io.NodeOutput:
        from ...host.checks.images import image_file_warnings
        from ...host.checks.text import text_node_warnings
        from ...host.sampling.rollout import prepare_rollout, run_rollout

        wanted = make_request(
            frames,
            chunk,
            window,
            sink,
            indices=_indices(steps, indices),
            shift=shift or None,
            steps=guided_steps,
            guide_scale=guide_scale,
        )
        run = prepare_rollout(
            model, (positive, negative), wanted, image=start_image, camera=camera, state=state, latent=start_latent
        )
        show_warning(" ".join(run.notes), *text_node_warnings(), *image_file_warnings(start_image, "start_image"))
        return io.NodeOutput(*run_rollout(run, vae, seed, kv_cache))


def _joined(indices: tuple[int, ...]) -> str:
    return ", ".join(map(str, indices))


def _indices(steps: str, custom: str) -> tuple[int, ...] | None:
    if steps != CUSTOM:
        return STEPS[steps]
    try:
        return tuple(int(index) for index in custom.split(","))
    except ValueError:
        raise InputError(f"indices are {custom!r}, expected numbers such as {_joined(V2_INDICES)}") from None


def _check() -> None:
    from ...host.checks.graph import check_rollout
    from ...sampling import few_step_schedule

    check_rollout()
    known = known_inputs()
    if known.get("steps") == CUSTOM and "indices" in known:
        few_step_schedule(_indices(CUSTOM, known["indices"]), CAUSAL_SHIFT)
