"""Encoding of prompts in ComfyUI, by a streamed text encoder or one that stays loaded as a CLIP."""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import comfy.model_management as mm
import comfy.sd
import comfy.text_encoders.sd3_clip
import comfy.text_encoders.wan
import comfy.utils
import folder_paths
import torch
import torch.nn.functional as F
from comfy import sd1_clip
from torch import Tensor

from ...errors import TextError
from ...text.encoder import check_vocabulary, encode
from ...text.prompts import clean_prompt
from ...text.tokenizer import MAX_TOKENS, Tokenizer, load_tokenizer, truncation_warning
from ...text.weights import UMT5Config, huggingface_key, open_weights
from ...weights.files import read_tensors
from ...weights.gguf_file import BlockWeight
from ...weights.quantized import FourBitWeight
from ..files.search import fingerprint
from ..prompt import EVENTS
from ..prompt.notice import show_warning

Conditioning = list[list]
_SYNTAX = re.compile(r"\([^()]+:\s*\d*\.?\d+\s*\)|(?<!\S)embedding:\S")
_WORKSPACE = 512 << 20
_CORE_BUCKETS = 32
MAX_CACHED = 8
"""The maximum number of cached embeddings, each of less than 8.4 MB."""
_cache: OrderedDict[tuple[str, str], Tensor] = OrderedDict()


def encode_prompts(encoder: Path, tokenizer: Path, prompts: Sequence[str]) -> list[Conditioning]:
    """Return a CONDITIONING for each prompt, with an embedding float32 [1, 512, D], zero after the last token. Raise
    TextError for unusable files."""
    show_warning("")
    if any(_SYNTAX.search(prompt) for prompt in prompts):
        show_warning(
            "Weights such as (word:1.2) and embedding:name are read as plain text here, as the official code "
            "reads them; for weights use CLIP Text Encode after Load LingBot-World Text Encoder."
        )

    def encode_some(texts: Sequence[str]) -> list[Tensor]:
        weights, device = open_weights(encoder), mm.get_torch_device()
        needed = 2 * sum(entry.nbytes for entry in weights.block(0)) + _WORKSPACE
        mm.free_memory(needed, device)  # ComfyUI unloads models to make room
        device = device if mm.get_free_memory(device) >= needed else torch.device("cpu")
        dtype = torch.bfloat16 if mm.should_use_bf16(device) else torch.float32
        bar = comfy.utils.ProgressBar(1)

        def report(done: int, total: int) -> None:
            bar.update_absolute(done, total)
            mm.throw_exception_if_processing_interrupted()

        return encode(texts, weights, tokenizer, device, dtype, report, show_warning)

    conditionings = []
    for made in _embeddings((encoder, tokenizer), prompts, encode_some):
        padded = F.pad(made, (0, 0, 0, MAX_TOKENS - len(made)))  # as core's CLIPTextEncode pads umt5 prompts
        conditionings.append([[padded[None].to(mm.intermediate_device()), {"pooled_output": None}]])
    mm.soft_empty_cache()
    return conditionings


def encode_with_events(encoder: Path, tokenizer: Path, prompt: str, negative: str, events: str) -> list[Conditioning]:
    """Return the CONDITIONING of a prompt with its world events (timed changes of the prompt), and of the negative
    prompt. `events`: JSON for `read_events`, or empty. Raise InputError for invalid events."""
    if not events.strip():
        return encode_prompts(encoder, tokenizer, [prompt, negative])
    from ...text.events import events_of, prompts_by_second  # not at the start of ComfyUI: it imports the model

    known = events_of(events)
    seconds = prompts_by_second(known, prompt)
    ([[text, extras]], other, *later) = encode_prompts(
        encoder, tokenizer, [prompt, negative, *(text for _, text in seconds)]
    )
    parts = [(second, made[0][0]) for (second, _), made in zip(seconds, later, strict=True)]
    return [[[text, {**extras, EVENTS: (known, parts)}]], other]


def _embeddings(
    files: Iterable[Path], prompts: Iterable[str], encode: Callable[[list[str]], list[Tensor]]
) -> list[Tensor]:
    prompts, version = list(prompts), fingerprint(files)
    missing = [prompt for prompt in dict.fromkeys(prompts) if (version, prompt) not in _cache]
    made = dict(zip(missing, encode(missing) if missing else [], strict=True))
    for prompt in prompts:
        if prompt not in made:
            _cache.move_to_end((version, prompt))
    found = [made[prompt] if prompt in made else _cache[version, prompt] for prompt in prompts]
    for prompt, embedding in made.items():
        if len(embedding) < MAX_TOKENS:  # a longer prompt was cut: each use encodes it again and shows the warning
            _cache[version, prompt] = embedding.cpu().clone()  # a view would keep the memory of all embeddings
    while len(_cache) > MAX_CACHED:
        _cache.popitem(last=False)
    return found


def load_clip(
    encoder: Path, tokenizer: Path, model_options: dict | None = None, disable_dynamic: bool = False
) -> comfy.sd.CLIP:
    """Return ComfyUI's CLIP for a umt5 encoder. Raise TextError for 4-bit and GGUF weights, another model's file, and a
    tokenizer with another vocabulary.

    model_options: options of ComfyUI's CLIP, such as "load_device".
    disable_dynamic: whether to load without ComfyUI's dynamic VRAM.
    """
    weights = open_weights(encoder)
    if any(isinstance(weight, FourBitWeight | BlockWeight) for weight in weights.quantized.values()):
        raise TextError(
            f"{encoder}: a CLIP that stays in memory cannot be made from {weights.quantization} weights; use the "
            "LingBot-World text node, which streams them, or the official file"
        )
    ids = load_tokenizer(tokenizer)
    check_vocabulary(ids, weights)
    # Core reads safetensors, to know where in the file each tensor lies.
    if encoder.suffix == ".safetensors":
        named, metadata = comfy.utils.load_torch_file(str(encoder), safe_load=True, return_metadata=True)
    else:
        named, metadata = {name: entry.view() for name, entry in read_tensors(encoder).items()}, None
    tensors = {huggingface_key(name): tensor for name, tensor in named.items()}
    tensors = comfy.utils.convert_old_quants(tensors, metadata=metadata)[0]
    target = SimpleNamespace(
        params={},
        clip=_warn_of_layers(comfy.text_encoders.wan.te(**comfy.text_encoders.sd3_clip.t5_xxl_detect(tensors))),
        tokenizer=comfy.text_encoders.wan.WanT5Tokenizer,
    )
    clip = comfy.sd.CLIP(
        target,
        embedding_directory=folder_paths.get_folder_paths("embeddings"),
        tokenizer_data={"clip_umt5xxl_tokenizer_class": partial(PromptTokenizer, ids, weights.config.dim)},
        parameters=comfy.utils.calculate_parameters(tensors),
        state_dict=[tensors],
        model_options={**(model_options or {}), "umt5xxl_model_config": _core_config(weights.config)},
        disable_dynamic=disable_dynamic,
    )

    def load_again(*arguments, disable_dynamic: bool = False):
        return load_clip(*arguments, disable_dynamic=disable_dynamic).patcher

    clip.patcher.cached_patcher_init = (load_again, (encoder, tokenizer, model_options))
    return clip


def _warn_of_layers(encoder: type) -> type:
    class PromptEncoder(encoder):
        def set_clip_options(self, options):
            if options.get("layer") is not None:
                show_warning(
                    f"CLIP Set Last Layer takes the text from layer {options['layer']} of umt5; LingBot-World "
                    "was trained with the last one, normalised: take that node out."
                )
            super().set_clip_options(options)

    return PromptEncoder


def _core_config(config: UMT5Config) -> dict[str, int]:
    if config.buckets != _CORE_BUCKETS:
        raise TextError(
            f"ComfyUI's T5 has {_CORE_BUCKETS} relative position buckets, this file has {config.buckets}; "
            "use LingBot-World Text Encode instead"
        )
    return {
        "d_model": config.dim,
        "d_ff": config.ffn_dim,
        "d_kv": config.attention_dim // config.num_heads,
        "num_heads": config.num_heads,
        "num_layers": config.num_layers,
        "vocab_size": config.vocab_size,
    }


class PromptTokenizer(sd1_clip.SDTokenizer):
    """A tokenizer for ComfyUI's CLIP class: the official code's token ids, at most 512, and ComfyUI's prompt syntax."""

    def __init__(self, ids: Tokenizer, dim: int, embedding_directory=None, tokenizer_data=None):
        super().__init__(
            embedding_directory=embedding_directory,
            embedding_size=dim,
            embedding_key="umt5xxl",
            tokenizer_class=_CoreTokenizer(ids),
            has_start_token=False,
            pad_with_end=False,
            pad_to_max_length=False,
            max_length=2**31,
            min_length=MAX_TOKENS,
            pad_token=0,
            tokenizer_data=tokenizer_data or {},
        )

    def tokenize_with_weights(self, text: str, return_word_ids: bool = False, **kwargs) -> list[list[tuple]]:
        """Return [[(id, weight), ...]], padded to 512 tokens. A longer text is cut, with a warning."""
        show_warning("")
        (tokens,) = super().tokenize_with_weights(text, return_word_ids, **kwargs)
        if len(tokens) > MAX_TOKENS:
            show_warning(truncation_warning(len(tokens), text))
            tokens = [*tokens[: MAX_TOKENS - 1], tokens[-1]]
        return [tokens]

    def _try_get_embedding(self, embedding_name: str):
        found = super()._try_get_embedding(embedding_name)
        if found[0] is None:
            show_warning(
                f"embedding:{found[1]} is not in models/embeddings, or is for another encoder: it is left out "
                "of the prompt."
            )
        return found


class _CoreTokenizer:
    """An adapter that gives the engine's Tokenizer the methods that ComfyUI's SDTokenizer calls."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer

    def from_pretrained(self, _path: str) -> "_CoreTokenizer":
        return self

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [*self.tokenizer.to_ids(clean_prompt(text)), self.tokenizer.eos]}

    def get_vocab(self) -> dict[str, int]:
        return {}
