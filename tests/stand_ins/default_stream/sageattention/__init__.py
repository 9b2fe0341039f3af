"""Stands in for SageAttention 2.x, whose kernels run on CUDA's default stream. The attention is exact.

Put the folder above this package on sys.path. With LINGBOT_RIGHT_STREAM=1 the kernels run on the current stream."""

import os
from contextlib import nullcontext

import torch
from torch.nn.functional import scaled_dot_product_attention


def sageattn(q, k, v, tensor_layout="HND", is_causal=False, **_options):
    right = os.environ.get("LINGBOT_RIGHT_STREAM") == "1"
    with nullcontext() if right else torch.cuda.stream(torch.cuda.default_stream(q.device)):
        if tensor_layout == "NHD":
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        return out.transpose(1, 2) if tensor_layout == "NHD" else out
