"""The nodes that save and load the state from which a later session continues a causal model's video."""

from comfy_api.latest import io

from ...errors import InputError
from ...host.files import states
from ...host.prompt.notice import show_text
from ..inputs import State, choice_input
from ..validation import fingerprint_of, validate

CATEGORY = "LingBot-World/sampling"
NO_STATE = "none (see the tooltip)"


class LingBotWorldSaveState(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldSaveState",
            display_name="Save LingBot-World State",
            category=CATEGORY,
            description="Writes a Rollout's state to a file in the output folder. Load State, or the command with "
            "--continue_from, continues from this file after a restart.",
            search_aliases=["lingbot", "save state", "save world", "checkpoint", "continue later"],
            is_output_node=True,
            inputs=[
                State.Input("state", tooltip="The state of a Rollout."),
                io.String.Input(
                    "filename_prefix",
                    display_name="filename prefix",
                    default="states/LingBot-World",
                    tooltip="Folder and beginning of the file's name in ComfyUI's output folder. A number is added; "
                    "nothing is overwritten.",
                ),
            ],
            outputs=[],
        )

    @classmethod
    def validate_inputs(cls, filename_prefix):
        return validate(states.check_prefix, filename_prefix)

    @classmethod
    def execute(cls, state, filename_prefix) -> io.NodeOutput:
        path = states.save(state, filename_prefix)
        note = f"{state.frames} frames: {path}. Press R, and Load State lists it."
        show_text(note)
        return io.NodeOutput(ui={"text": [note]})


class LingBotWorldLoadState(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        choices = states.choices() or [NO_STATE]
        return io.Schema(
            node_id="LingBotWorldLoadState",
            display_name="Load LingBot-World State",
            category=CATEGORY,
            description="Reads a state that Save State or the command's --save_state wrote, for a Rollout that "
            "continues its video.",
            search_aliases=["lingbot", "load state", "load world", "continue video", "resume"],
            inputs=[
                choice_input(
                    "file",
                    choices,
                    "A .state file of ComfyUI's input folder or, marked [output], of its output folder. Press "
                    "R after adding one.",
                )
            ],
            outputs=[
                State.Output("state", display_name="state", tooltip="For a Rollout that continues from here."),
                io.Int.Output("frame_count", display_name="frames", tooltip="Frames of the video so far."),
            ],
        )

    @classmethod
    def validate_inputs(cls, file):
        return validate(_load, file)

    @classmethod
    def fingerprint_inputs(cls, file):
        return fingerprint_of(states.resolve, file)

    @classmethod
    def execute(cls, file) -> io.NodeOutput:
        state = _load(file)
        return io.NodeOutput(state, state.frames)


def _load(name: str):
    if name == NO_STATE:
        raise InputError(
            "there is no state yet: Save LingBot-World State writes one, or put a .state file into "
            "ComfyUI's input folder, and press R"
        )
    return states.load(name)
