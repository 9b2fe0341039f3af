"""Arguments and a plain fp64 reference for each function of pointwise.py; shared by the CPU and the GPU tests."""

import torch

HEADS = 4
EPS = 1e-6


def _randn(*shape, dtype, device):
    return torch.randn(*shape, dtype=torch.float32).to(device, dtype)


def _vectors(dim, device, count):
    return [_randn(dim, dtype=torch.float32, device=device) for _ in range(count)]


def _layer_norm(tokens, dim, dtype, device):
    return (_randn(tokens, dim, dtype=torch.float32, device=device), *_vectors(dim, device, 2), EPS, dtype)


def _rms_norm(tokens, dim, dtype, device):
    return (_randn(tokens, dim, dtype=dtype, device=device), *_vectors(dim, device, 1), EPS)


def _rms_rope(tokens, dim, dtype, device):
    angles = 6 * torch.rand(tokens, dim // HEADS // 2)
    x, weight, eps = _rms_norm(tokens, dim, dtype, device)
    return x, weight, angles.cos().to(device), angles.sin().to(device), eps


def _gated_add(tokens, dim, dtype, device):
    x, y = (_randn(tokens, dim, dtype=t, device=device) for t in (torch.float32, dtype))
    return (x, y, *_vectors(dim, device, 1))


def _affine(tokens, dim, dtype, device):
    return tuple(_randn(tokens, dim, dtype=t, device=device) for t in (torch.float32, dtype, dtype))


def _modulated(_tokens, dim, dtype, device):
    return _randn(2, 6, dim, dtype=torch.float32, device=device), _randn(1, 6, dim, dtype=dtype, device=device)


def _put(tokens, dim, dtype, device):
    out, x = (_randn(count, dim, dtype=dtype, device=device) for count in (2 * tokens, tokens))
    return out, torch.randperm(2 * tokens)[:tokens].to(device), x


def _merge(tokens, dim, dtype, device):
    """Two parts of the keys and a rest; the largest sum is any one's."""
    sizes, sums = (tokens, HEADS, dim // HEADS), (HEADS, tokens)
    out, *parts = (_randn(*count, *sizes, dtype=dtype, device=device) for count in ((), (2,), (1,)))
    log_sums = [8 * _randn(count, *sums, dtype=torch.float32, device=device) for count in (2, 1)]
    return out, parts[0], log_sums[0], parts[1], log_sums[1]


CASES = {
    "layer_norm": _layer_norm,
    "rms_norm_": _rms_norm,
    "rms_rope_": _rms_rope,
    "rms_silu": _rms_norm,
    "gated_add_": _gated_add,
    "affine_": _affine,
    "modulated": _modulated,
    "scatter_": _put,
    "merge_": _merge,
}
NAMES = tuple(CASES)


def reference(name, x, *arguments):
    """The function in fp64, written out."""
    x, *rest = (a.double() if isinstance(a, torch.Tensor) else a for a in (x, *arguments))
    if name == "layer_norm":
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + rest[2]).sqrt() * rest[0] + rest[1]
    if name == "gated_add_":
        return x + rest[0] * rest[1]
    if name == "affine_":
        return x * (1 + rest[0]) + rest[1]
    if name == "modulated":
        return x + rest[0] + torch.tensor([0.0, 1, 0, 0, 1, 0], dtype=x.dtype, device=x.device)[:, None]
    if name == "scatter_":
        return x.index_copy(0, rest[0].long(), rest[1])
    if name == "merge_":
        parts, sums = torch.cat(rest[::2]), torch.cat(rest[1::2]).exp()
        return (parts * (sums / sums.sum(0)).transpose(1, 2)[..., None]).sum(0)
    x = x / (x.square().mean(-1, keepdim=True) + rest[-1]).sqrt() * rest[0]
    if name == "rms_silu":
        return x / (1 + (-x).exp())
    return x if name == "rms_norm_" else _turn(x, rest[1], rest[2])


def _turn(x, cos, sin):
    pairs = torch.view_as_complex(x.unflatten(-1, (HEADS, -1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.complex(cos, sin).unsqueeze(1)).flatten(1)


def check(function, name, tokens, dim, dtype, device, tolerance):
    """`function` against the reference: relative to each value's size plus one, and in place where its name says so."""
    torch.manual_seed(tokens)
    arguments = CASES[name](tokens, dim, dtype, device)
    want = reference(name, *arguments)
    got = function(*arguments)
    assert (got is arguments[0]) == name.endswith("_")
    assert got.dtype == (torch.float32 if name in ("gated_add_", "affine_", "modulated") else dtype)
    error = ((got.double() - want).abs() / (1 + want.abs())).max()
    assert error < tolerance, f"{name} of {tokens} x {dim} in {dtype}: {error:.2e}"
