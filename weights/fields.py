"""The data for docs/formats.md: every known field of weight files, and whether it is applied, refused, ignored or
reported. Some lists are imported from the modules that read the files."""

from ..fields import Field
from ..model.quantized import ggml
from . import comfy, gguf_file
from .files import CHECKPOINT_PARTS
from .tensors import DTYPES

_BLOCK_SCALES = "weight_scale_2"
_READ = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")

SAFETENSORS = (
    Field(_READ, "applied", "Values without a scale. Values of more bits than the model computes in are rounded once."),
    Field(
        tuple(sorted(DTYPES.keys() - set(_READ))),
        "refused",
        "As plain values. Integers and block scales are read only as parts of a quantized weight.",
    ),
    Field(
        ("C64", "F4", "F6_E2M3", "F6_E3M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), "refused", "No reader supports these dtypes."
    ),
)
BITSANDBYTES = (
    Field(
        ("absmax", "quant_map", "nested_absmax", "nested_quant_map", "quant_state.bitsandbytes__nf4"),
        "applied",
        "NF4 and FP4, with or without double quantization. A missing part is an error.",
    ),
    Field(("SCB", "qweight", "qzeros", "wscales", "smooth_factor"), "refused", "LLM.int8, GPTQ, AWQ, nunchaku."),
)
COMFYUI = (
    Field(CHECKPOINT_PARTS, "applied", "Parts of a ComfyUI checkpoint: model, umt5 and VAE are read from one file."),
    Field(tuple(comfy.FORMATS), "applied", "`format`, in `_quantization_metadata` or a tensor `comfy_quant`."),
    Field(("convrot_w4a4", "asym_w4a8_int8"), "refused", "Any other `format` is refused by its name."),
    Field(("convrot", "convrot_groupsize"), "applied", "int8 with rotated rows; the weight is rotated back."),
    Field(
        comfy.SCALES,
        "applied",
        f"The scales of a weight: one, or one a row; a lost or inverted one is refused; `{_BLOCK_SCALES}` is nvfp4's.",
    ),
    Field((comfy.SMOOTHED,), "refused", "Inputs would have to be smoothed before the product."),
    Field(
        ("input_scale", "scale_input", "scaled_fp8", "full_precision_matrix_mult"),
        "ignored",
        "Scales of activations, which have a scale for each token here, and hints for ComfyUI's products.",
    ),
)
GGUF = (
    Field(tuple(gguf_file.PLAIN), "applied", "Plain values."),
    Field(tuple(ggml.BLOCKS), "applied", "Decoded to the bits of the library gguf; kept in their blocks in memory."),
    Field(("IQ1_S to IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4", "I8 to I64"), "refused", "Every other type, by its name."),
    Field((f"{gguf_file.ORIGINAL_SHAPE}NAME",), "applied", "The shape of a tensor that is stored in another shape."),
    Field(("general.alignment",), "applied", "Where the tensors begin."),
    Field(("general.*", "tokenizer.*"), "ignored", "Names and vocabulary: the tokenizer is a file of its own."),
)
TEXT_ENCODER = (
    Field(
        ("token_embedding.", "shared.", "encoder.embed_tokens.", "token_embd."),
        "applied",
        "The names of Wan, Hugging Face and llama.cpp. Weights may be in any form of the tables above.",
    ),
    Field(
        ("tokenizer.json", "spiece.model"), "refused", "More tokens than the embedding has rows, or over 1,024 fewer."
    ),
    Field(("spiece_model",), "applied", "The tokenizer, if no tokenizer file is next to this file."),
    Field(("decoder.", "lm_head."), "reported", "`inspect` and `verify` count the tensors that are not the encoder's."),
    Field(("blocks.N.*",), "refused", "A tensor of a block that umt5 does not have, such as a bias."),
)
VAE = (
    Field(("decoder.head.0.gamma",), "applied", "Wan 2.1's VAE of any width, under Wan's or diffusers' names."),
    Field(("decoder.1.weight",), "applied", "The tiny decoders taew2_1 and lighttaew2_1, as files of their own."),
    Field(("other names",), "refused", "A tensor that Wan 2.1's VAE does not have."),
)
