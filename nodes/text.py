"""The nodes that encode prompts with a streamed text encoder, and that load a text encoder as CLIP."""

from pathlib import Path

import torch
from comfy_api.latest import io

from ..host.files import folders
from ..host.model.clip import encode_with_events, load_clip
from ..text.prompts import NEGATIVE_PROMPT
from ..text.tokenizer import find_tokenizer
from ..text.weights import open_weights
from .inputs import choice_input
from .validation import fingerprint_of, validate

_ALIASES = ["lingbot", "umt5", "t5", "wan", "text encoder"]


def _encoder_input() -> io.Combo.Input:
    choices = folders.text_encoder_choices() or ["models_t5_umt5-xxl-enc-bf16.pth"]
    return choice_input(
        "text_encoder",
        choices,
        "The umt5-xxl encoder: the package's models_t5_umt5-xxl-enc-bf16.pth, its text_encoder folder in "
        "diffusers' layout, or a file in text_encoders (umt5_xxl_fp16, umt5_xxl_fp8_e4m3fn_scaled and the like).",
    )


def _tokenizer_input() -> io.Combo.Input:
    return choice_input(
        "tokenizer",
        folders.tokenizer_choices(),
        "auto: the tokenizer folder next to the text encoder, else a package's, else the tokenizer inside the "
        "encoder's own file or inside another umt5 file of text_encoders.",
        optional=True,
        advanced=True,
    )


def _paths(text_encoder: str, tokenizer: str) -> tuple[Path, Path]:
    encoder = folders.resolve_text_encoder(text_encoder)
    return encoder, folders.resolve_tokenizer(tokenizer, encoder)


def _check_files(text_encoder: str) -> None:
    """Raise LingBotError if the text encoder, or the tokenizer that "auto" selects, cannot be used. Other tokenizers
    are checked at run time."""
    open_weights(folders.resolve_text_encoder(text_encoder))
    find_tokenizer(_paths(text_encoder, folders.AUTO)[1])


class _TextNode:
    @classmethod
    def validate_inputs(cls, text_encoder) -> bool | str:
        return validate(_check_files, text_encoder)

    @classmethod
    def fingerprint_inputs(cls, text_encoder, tokenizer=folders.AUTO, **_) -> str:
        return fingerprint_of(_paths, text_encoder, tokenizer)


class LingBotWorldTextEncode(_TextNode, io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldTextEncode",
            display_name="LingBot-World Text Encode",
            category="LingBot-World",
            description="Encodes the prompt and the negative prompt with one block of the text encoder in memory at a "
            "time. The encoder does not stay in memory.",
            search_aliases=[*_ALIASES, "prompt", "positive prompt", "negative prompt", "clip text encode"],
            inputs=[
                _encoder_input(),
                io.String.Input(
                    "prompt",
                    multiline=True,
                    dynamic_prompts=True,
                    default="A slow flight over a quiet mountain lake at sunrise, mist drifting between the pines.",
                    tooltip="What the video shows. At most 512 tokens; a longer prompt is cut, and the node says so.",
                ),
                io.String.Input(
                    "negative",
                    multiline=True,
                    dynamic_prompts=True,
                    default=NEGATIVE_PROMPT,
                    tooltip="What the video should not show. The default lists usual flaws, in Chinese as the model "
                    "was trained with. Used where cfg is not 1.",
                ),
                _tokenizer_input(),
                io.String.Input(
                    "events",
                    optional=True,
                    force_input=True,
                    tooltip="Sentences that extend the prompt from a second of a Rollout's video on, as JSON: "
                    '[{"second": 5, "text": "It begins to rain."}]. An `end` is optional.',
                ),
            ],
            outputs=[
                io.Conditioning.Output("positive_out", display_name="positive", tooltip="The prompt, encoded."),
                io.Conditioning.Output(
                    "negative_out", display_name="negative", tooltip="The negative prompt, encoded."
                ),
            ],
        )

    @classmethod
    def execute(cls, text_encoder, prompt, negative, tokenizer=folders.AUTO, events="") -> io.NodeOutput:
        return io.NodeOutput(*encode_with_events(*_paths(text_encoder, tokenizer), prompt, negative, events))


class LingBotWorldLoadTextEncoder(_TextNode, io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LingBotWorldLoadTextEncoder",
            display_name="Load LingBot-World Text Encoder",
            category="LingBot-World",
            description="Loads the text encoder as an ordinary CLIP for CLIPTextEncode, which ComfyUI keeps in memory. "
            "Use it when prompts change often and memory is plentiful.",
            search_aliases=[*_ALIASES, "load clip", "clip loader"],
            inputs=[
                _encoder_input(),
                _tokenizer_input(),
                choice_input(
                    "device",
                    ["default", "cpu"],
                    "default: where ComfyUI runs text encoders. cpu: keep it off the GPU.",
                    optional=True,
                    advanced=True,
                ),
            ],
            outputs=[io.Clip.Output("clip", display_name="CLIP", tooltip="The text encoder, for CLIPTextEncode.")],
        )

    @classmethod
    def execute(cls, text_encoder, tokenizer=folders.AUTO, device="default") -> io.NodeOutput:
        cpu = torch.device("cpu")
        options = {"load_device": cpu, "offload_device": cpu} if device == "cpu" else {}
        return io.NodeOutput(load_clip(*_paths(text_encoder, tokenizer), options))
