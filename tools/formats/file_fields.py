"""The fields of files of images, weights and LoRAs, for docs/formats.md, partly from the modules that read them."""

from lingbot_world.fields import Field
from lingbot_world.loaders.loras import names, scale
from lingbot_world.model.quantized import ggml
from lingbot_world.weights import comfy, config_json, gguf_file
from lingbot_world.weights.files import CHECKPOINT_PARTS
from lingbot_world.weights.tensors import DTYPES

IMAGES = (
    Field(("EXIF Orientation", "irot", "imir"), "applied", "All eight turns and mirrors."),
    Field(("ICC profile",), "applied", "RGB, grey, CMYK and Lab, to sRGB. A broken one is reported."),
    Field(("EXIF interoperability R03",), "applied", "Adobe RGB without a profile."),
    Field(("gAMA", "cHRM", "sRGB"), "applied", "PNG: gamma and primaries, in a file without a profile."),
    Field(("cICP", "nclx"), "applied", "PNG, AVIF, HEIF: primaries. PQ, HLG (HDR) and video range are reported."),
    Field(
        ("cicp in a profile",), "reported", "PQ and HLG (HDR): the profile is applied, the brightness is not mapped."
    ),
    Field(("alpha", "tRNS", "palette"), "applied", "Transparency is composited on white; reported, with --quiet too."),
    Field(("16 bits",), "applied", "Scaled to 8 bits. No value above 4095 is reported."),
    Field(("BitsPerSample", "SMaxSampleValue"), "applied", "TIFF: white of 9 to 15 bits. In colour it is refused."),
    Field(("PhotometricInterpretation",), "applied", "TIFF: white may be 0."),
    Field(("NewSubfileType", "DNGVersion"), "refused", "A camera's raw file: its first image is a small preview."),
    Field(
        ("floating point", "32 bits"), "refused", "The value of white is unknown: 1, 255, or the file holds distances."
    ),
    Field(("CMYK without a profile",), "reported", "Converted by inversion, not to the colours of a printing press."),
    Field(("frames",), "reported", "Of an animated image or a burst the first frame is used."),
    Field(("a folder's files",), "applied", "Frames are the images of the commonest format. A tie is refused."),
    Field(("JFIF density", "pHYs"), "ignored", "Pixels are square, as browsers show them."),
    Field(("gain map", "depth map"), "ignored", "The base image is used, as programs without HDR show it."),
)

CONFIG = (
    Field(("num_heads", "num_attention_heads", "text_len", "eps"), "applied", "Numbers that no tensor shows."),
    Field(
        (
            *("dim", "ffn_dim", "freq_dim", "text_dim", "in_dim", "out_dim", "num_layers"),
            "in_channels",
            "out_channels",
            "attention_head_dim",
        ),
        "refused",
        "Sizes that differ from the tensors'.",
    ),
    Field(
        tuple(config_json.FIXED_FIELDS),
        "refused",
        f"Anything but {', '.join(f'{key} {value}' for key, value in config_json.FIXED_FIELDS.items())}.",
    ),
    Field(("control_type",), "refused", "`cam` and `act` have to be the camera layers' kind."),
    Field(("local_attn_size", "sink_size"), "ignored", "The window of the causal models is an option of the run."),
    Field(("model_type", "quantization_config"), "ignored", "The tensors show it."),
    Field(("architectures", "_class_name"), "ignored", "The class of another model: the whole file is then ignored."),
)

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

LORA_KEYS = (
    Field(
        names.PREFIXES, "applied", "Prefixes of a layer's name: the official or diffusers' one, or with underscores."
    ),
    Field((*names.DOWN, *names.UP), "applied", "Down and up, as matrices or 1x1 convolutions."),
    Field(("lora_B.bias", "lora_up.bias"), "applied", "Added to the layer's bias, with the LoRA's scale."),
    Field(("alpha",), "applied", "The scale is alpha / rank. It takes precedence over the header and over JSON files."),
    Field(("scale", "scalar"), "applied", "`scale` is the scale, `scalar` a factor of it."),
    Field(
        tuple(names.WHOLE), "applied", "Added as they are to weights, norms, biases; `diff_m` to a block's modulation."
    ),
    *(
        Field(parts, "refused", f"{kind[:1].upper()}{kind[1:]}: named, not applied.")
        for kind, parts in names.OTHER_KINDS.items()
    ),
)

LORA_SCALE = (
    Field(
        (scale.ALPHA, "network_alpha", "ss_network_alpha", "alpha"),
        "applied",
        "alpha of the scale alpha / rank, for layers without a tensor for it.",
    ),
    Field(
        (scale.RANK, "lora_rank", "rank", "network_dim", "ss_network_dim"),
        "applied",
        "The rank, which must equal the tensors' rank.",
    ),
    Field(
        (scale.SCALE, "lora_scale", "scaling"), "applied", "The scale; refused if alpha and rank give another scale."
    ),
    Field(scale.PATTERNS, "applied", "Other values for some layers, by the end of their names or a plain pattern."),
    Field(
        (scale.TRAINER,),
        "applied",
        "With PEFT's names and no alpha tensors the file was converted: its matrices already include the scale.",
    ),
    Field((scale.BY_ROOT, "rs_lora", "rank_stabilized"), "applied", "The scale is alpha / sqrt(rank)."),
    Field(("lora_bias",), "applied", "Biases of the up matrices, with the same scale."),
    Field(
        (*scale.REFUSED, "peft_type", "init_lora_weights"),
        "refused",
        f"All but plain LoRAs; {', '.join(scale.CHANGED_BASE)}.",
    ),
    Field(("modules_to_save", "bias"), "refused", "Whole weights and biases, if the file has them."),
    Field(
        (*scale.PACKED, "config", "metadata"),
        "applied",
        "Objects with the fields above, in the header as JSON; diffusers writes the first key. In other objects only "
        "names such as lora_alpha and network_dim count.",
    ),
    Field(
        ("NAME.json", "NAME_config.json", *scale.OTHER_SIDES),
        "applied",
        "As adapter_config.json, if a key names a LoRA's alpha or scale, such as lora_alpha, or with alpha and rank.",
    ),
    Field(("strength", "multiplier", "weight"), "ignored", "The author's recommended strength; the user's counts."),
)

NAMES = (
    Field(
        ("_class_name",),
        "applied",
        "In config.json: whether a model is causal, and whether it is 2.0's causal-pretrain.",
    ),
    Field(("lingbot-world-fast", "v2", "causal-fast", "causal-pretrain", "1.3b"), "applied", "A release."),
    Field(
        ("models--OWNER--NAME/snapshots/REVISION",),
        "applied",
        "Hugging Face's cache: the repository's name counts as a name.",
    ),
    Field(("high_noise", "HighNoise", "hinoise", "noise_high"), "applied", "An expert's role, and `low` likewise."),
    Field(("high", "low"), "applied", "A role only if the file with the other word is next to it."),
)
