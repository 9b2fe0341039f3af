"""8-bit files as ComfyUI and its users write them, out of plain tensors."""

import json

import torch
from safetensors.torch import save_file

FP8, E5M2, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
NAMES = {FP8: "float8_e4m3fn", E5M2: "float8_e5m2", INT8: "int8_tensorwise"}


def in_8_bits(weight, dtype, rows=False):
    """Values and scale of a weight, one scale or one for each row."""
    largest = 127 if dtype == INT8 else torch.finfo(dtype).max
    scale = weight.float().abs().amax(1, keepdim=True) if rows else weight.float().abs().amax()
    values = weight.float() / (scale / largest)
    return (values.round() if dtype == INT8 else values).to(dtype), scale / largest


def core_decoded(values, scale, dtype):
    """What comfy-kitchen's eager kernels make of them."""
    if values.dtype == INT8:
        return (values.float() * scale).to(dtype)
    return values.to(dtype) * scale.to(dtype)


def quantized(tensors, dtype, rows=False):
    """The tensors with their matrices in 8 bits: (tensors of a file, layers that are quantized)."""
    made, layers = {}, []
    for name, tensor in tensors.items():
        if tensor.ndim != 2:
            made[name] = tensor
            continue
        made[name], made[f"{name}_scale"] = in_8_bits(tensor, dtype, rows)
        layers.append(name.removesuffix(".weight"))
    return made, layers


def as_tensor(told):
    return torch.tensor(list(json.dumps(told).encode()), dtype=torch.uint8)


def save(file, tensors, stated=None):
    """`stated`: layers in the header's metadata."""
    metadata = {} if stated is None else {"_quantization_metadata": json.dumps({"layers": stated})}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, metadata or None)
    return file
