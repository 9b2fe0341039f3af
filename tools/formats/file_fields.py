"""The fields of files of images, weights and LoRAs, for docs/formats.md, partly from the modules that read them."""

from lingbot_world.fields import Field
from lingbot_world.loaders.loras import names, scale
from lingbot_world.model.quantized import ggml
from lingbot_world.weights import comfy, config_json, gguf_file
from lingbot_world.weights.files import CHECKPOINT_PARTS
from lingbot_world.weights.tensors import DTYPES

join = ", ".join


def fields(table: str) -> tuple[Field, ...]:
    """Return a field for each row `names | effect | how`; an indented line continues its row."""
    rows = (row.split(" | ") for row in table.strip().replace("\n    ", " ").split("\n"))
    return tuple(Field(tuple(names.split(", ")), effect, how) for names, effect, how in rows)


IMAGES = fields("""
EXIF Orientation, irot, imir | applied | All eight turns and mirrors.
ICC profile | applied | RGB, grey, CMYK and Lab, to sRGB. A broken one is reported.
EXIF interoperability R03 | applied | Adobe RGB without a profile.
gAMA, cHRM, sRGB | applied | PNG: gamma and primaries, in a file without a profile.
cICP, nclx | applied | PNG, AVIF, HEIF: primaries. PQ, HLG (HDR) and video range are reported.
cicp in a profile | reported | PQ and HLG (HDR): the profile is applied, the brightness is not mapped.
alpha, tRNS, palette | applied | Transparency is composited on white; reported, with --quiet too.
16 bits | applied | Scaled to 8 bits. No value above 4095 is reported.
BitsPerSample, SMaxSampleValue | applied | TIFF: white of 9 to 15 bits. In colour it is refused.
PhotometricInterpretation | applied | TIFF: white may be 0.
NewSubfileType, DNGVersion | refused | A camera's raw file: its first image is a small preview.
floating point, 32 bits | refused | The value of white is unknown: 1, 255, or the file holds distances.
CMYK without a profile | reported | Converted by inversion, not to the colours of a printing press.
frames | reported | Of an animated image or a burst the first frame is used.
a folder's files | applied | Frames are the images of the commonest format. A tie is refused.
JFIF density, pHYs | ignored | Pixels are square, as browsers show them.
gain map, depth map | ignored | The base image is used, as programs without HDR show it.
""")

_FIXED = join(f"{key} {value}" for key, value in config_json.FIXED_FIELDS.items())
CONFIG = fields(f"""
num_heads, num_attention_heads, text_len, eps | applied | Numbers that no tensor shows.
dim, ffn_dim, freq_dim, text_dim, in_dim, out_dim, num_layers, in_channels, out_channels, attention_head_dim | refused |
    Sizes that differ from the tensors'.
{join(config_json.FIXED_FIELDS)} | refused | Anything but {_FIXED}.
control_type | refused | `cam` and `act` have to be the camera layers' kind.
local_attn_size, sink_size | ignored | The window of the causal models is an option of the run.
model_type, quantization_config | ignored | The tensors show it.
architectures, _class_name | ignored | The class of another model: the whole file is then ignored.
""")

_READ = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")

SAFETENSORS = fields(f"""
{join(_READ)} | applied | Values without a scale. Values of more bits than the model computes in are rounded once.
{join(sorted(DTYPES.keys() - set(_READ)))} | refused | As plain values. Integers and block scales are read only
    as parts of a quantized weight.
C64, F4, F6_E2M3, F6_E3M2, F8_E4M3FNUZ, F8_E5M2FNUZ | refused | No reader supports these dtypes.
""")
BITSANDBYTES = fields("""
absmax, quant_map, nested_absmax, nested_quant_map, quant_state.bitsandbytes__nf4 | applied | NF4 and FP4, with or
    without double quantization. A missing part is an error.
SCB, qweight, qzeros, wscales, smooth_factor | refused | LLM.int8, GPTQ, AWQ, nunchaku.
""")
COMFYUI = fields(f"""
{join(CHECKPOINT_PARTS)} | applied | Parts of a ComfyUI checkpoint: model, umt5 and VAE are read from one file.
{join(comfy.FORMATS)} | applied | `format`, in `_quantization_metadata` or a tensor `comfy_quant`.
convrot_w4a4, asym_w4a8_int8 | refused | Any other `format` is refused by its name.
convrot, convrot_groupsize | applied | int8 with rotated rows; the weight is rotated back.
{join(comfy.SCALES)} | applied | The scales of a weight: one, or one a row; a lost or inverted one is refused;
    `weight_scale_2` is nvfp4's.
{comfy.SMOOTHED} | refused | Inputs would have to be smoothed before the product.
input_scale, scale_input, scaled_fp8, full_precision_matrix_mult | ignored | Scales of activations, which have a scale
    for each token here, and hints for ComfyUI's products.
""")
GGUF = fields(f"""
{join(gguf_file.PLAIN)} | applied | Plain values.
{join(ggml.BLOCKS)} | applied | Decoded to the bits of the library gguf; kept in their blocks in memory.
IQ1_S to IQ4_XS, TQ1_0, TQ2_0, MXFP4, I8 to I64 | refused | Every other type, by its name.
{gguf_file.ORIGINAL_SHAPE}NAME | applied | The shape of a tensor that is stored in another shape.
general.alignment | applied | Where the tensors begin.
general.*, tokenizer.* | ignored | Names and vocabulary: the tokenizer is a file of its own.
""")
TEXT_ENCODER = fields("""
token_embedding., shared., encoder.embed_tokens., token_embd. | applied | The names of Wan, Hugging Face and llama.cpp.
    Weights may be in any form of the tables above.
tokenizer.json, spiece.model | refused | More tokens than the embedding has rows, or over 1,024 fewer.
spiece_model | applied | The tokenizer, if no tokenizer file is next to this file.
decoder., lm_head. | reported | `inspect` and `verify` count the tensors that are not the encoder's.
blocks.N.* | refused | A tensor of a block that umt5 does not have, such as a bias.
""")
VAE = fields("""
decoder.head.0.gamma | applied | Wan 2.1's VAE of any width, under Wan's or diffusers' names.
decoder.1.weight | applied | The tiny decoders taew2_1 and lighttaew2_1, as files of their own.
other names | refused | A tensor that Wan 2.1's VAE does not have.
""")

LORA_KEYS = fields(f"""
{join(names.PREFIXES)} | applied | Prefixes of a layer's name: the official or diffusers' one, or with underscores.
{join(names.DOWN)}, {join(names.UP)} | applied | Down and up, as matrices or 1x1 convolutions.
lora_B.bias, lora_up.bias | applied | Added to the layer's bias, with the LoRA's scale.
alpha | applied | The scale is alpha / rank. It takes precedence over the header and over JSON files.
scale, scalar | applied | `scale` is the scale, `scalar` a factor of it.
{join(names.WHOLE)} | applied | Added as they are to weights, norms, biases; `diff_m` to a block's modulation.
""") + tuple(
    Field(parts, "refused", f"{kind[:1].upper()}{kind[1:]}: named, not applied.")
    for kind, parts in names.OTHER_KINDS.items()
)

LORA_SCALE = fields(f"""
{scale.ALPHA}, network_alpha, ss_network_alpha, alpha | applied | alpha of the scale alpha / rank, for layers without a
    tensor for it.
{scale.RANK}, lora_rank, rank, network_dim, ss_network_dim | applied | The rank, which must equal the tensors' rank.
{scale.SCALE}, lora_scale, scaling | applied | The scale; refused if alpha and rank give another scale.
{join(scale.PATTERNS)} | applied | Other values for some layers, by the end of their names or a plain pattern.
{scale.TRAINER} | applied | With PEFT's names and no alpha tensors the file was converted: its matrices already include
    the scale.
{scale.BY_ROOT}, rs_lora, rank_stabilized | applied | The scale is alpha / sqrt(rank).
lora_bias | applied | Biases of the up matrices, with the same scale.
{join(scale.REFUSED)}, peft_type, init_lora_weights | refused | All but plain LoRAs; {join(scale.BASE_CHANGING_INITS)}.
modules_to_save, bias | refused | Whole weights and biases, if the file has them.
{join(scale.PACKED)}, config, metadata | applied | Objects with the fields above, in the header as JSON; diffusers
    writes the first key. In other objects only names such as lora_alpha and network_dim count.
NAME.json, NAME_config.json, {join(scale.OTHER_SIDES)} | applied | As adapter_config.json, if a key names a LoRA's
    alpha or scale, such as lora_alpha, or with alpha and rank.
strength, multiplier, weight | ignored | The author's recommended strength; the user's counts.
""")

NAMES = fields("""
_class_name | applied | In config.json: whether a model is causal, and whether it is 2.0's causal-pretrain.
lingbot-world-fast, v2, causal-fast, causal-pretrain, 1.3b | applied | A release.
models--OWNER--NAME/snapshots/REVISION | applied | Hugging Face's cache: the repository's name counts as a name.
high_noise, HighNoise, hinoise, noise_high | applied | An expert's role, and `low` likewise.
high, low | applied | A role only if the file with the other word is next to it.
""")
