"""GGUF files as ComfyUI-GGUF's converter and llama.cpp write them, out of plain tensors."""

import gguf
import numpy as np
import torch
from block_cases import blocks
from lingbot_world.model.quantized.ggml import BLOCKS

KINDS = ("F32", "F16", "BF16", *BLOCKS)
T5_NAMES = {
    "norm1": "attn_norm",
    "attn.q": "attn_q",
    "attn.k": "attn_k",
    "attn.v": "attn_v",
    "attn.o": "attn_o",
    "pos_embedding.embedding": "attn_rel_b",
    "norm2": "ffn_norm",
    "ffn.gate.0": "ffn_gate",
    "ffn.fc1": "ffn_up",
    "ffn.fc2": "ffn_down",
}


def encoded(tensor, kind, seed=0):
    """Bytes and stored shape of a tensor. Formats that the library cannot write are drawn at random."""
    type_, shape = getattr(gguf.GGMLQuantizationType, kind), tuple(tensor.shape)
    values = tensor.float().numpy()
    if kind in BLOCKS and shape[-1] % BLOCKS[kind].values:
        shape = (values.size // 256, 256)
    try:
        made = gguf.quantize(values.reshape(shape), type_)
    except NotImplementedError:
        made = blocks(kind, values.size, seed).reshape(*shape[:-1], -1)
    return made, type_, shape


def write(path, tensors, kind="Q8_0", arch="wan", fields=None, prefix=""):
    """Write the tensors; matrices, and what `kinds` names otherwise, in `kind`. Returns the file."""
    writer = gguf.GGUFWriter(path=None, arch=arch)
    for name, value in (fields or {}).items():
        writer.add_array(name, value)
    for number, (name, tensor) in enumerate(tensors.items()):
        small = tensor.ndim != 2 or tensor.numel() % 256 or "pos_embedding" in name or "rel_b" in name
        made, type_, shape = encoded(tensor, "F32" if small else kind, number)
        if shape != tuple(tensor.shape):
            writer.add_array(f"comfy.gguf.orig_shape.{prefix}{name}", [int(size) for size in tensor.shape])
        writer.add_tensor(prefix + name, made, raw_dtype=type_)
    writer.write_header_to_file(path=path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def decoded(path):
    """What the library makes of each tensor, in the shape of the weight."""
    reader, made = gguf.GGUFReader(path), {}
    for tensor in reader.tensors:
        field = reader.get_field(f"comfy.gguf.orig_shape.{tensor.name}")
        shape = tensor.shape.tolist()[::-1] if field is None else field.contents()
        data = tensor.data.view(np.uint8) if tensor.tensor_type.name in BLOCKS else tensor.data
        made[tensor.name] = torch.from_numpy(gguf.dequantize(data, tensor.tensor_type).copy()).view(*shape)
    return made


def llama_names(tensors):
    """A umt5 encoder's tensors under llama.cpp's names."""
    named = {"token_embd.weight": tensors["token_embedding.weight"], "enc.output_norm.weight": tensors["norm.weight"]}
    for key, tensor in tensors.items():
        if key.startswith("blocks."):
            _, number, rest = key.split(".", 2)
            named[f"enc.blk.{number}.{T5_NAMES[rest.removesuffix('.weight')]}.weight"] = tensor
    return named
