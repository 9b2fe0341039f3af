"""Sequence parallelism: several processes with a GPU each share the tokens of one video (DeepSpeed-Ulysses,
arXiv:2309.14509)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor, distributed
from torch.nn import functional as F

from ..errors import InputError
from .config import ModelConfig

RunActions = Callable[..., None]
"""A function run_actions(*actions). An action takes no arguments, and starts or awaits an all-to-all exchange.
`run_actions` calls the actions. During the recording of CUDA graphs, it adds them to the replay instead."""

# torch before 2.13 has the second name only
_all_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor


def start_gather(gathered: Tensor, share: Tensor, group: distributed.ProcessGroup) -> distributed.Work:
    """Start to gather the tensor `share` of every process into `gathered`, by rank. Return the pending operation;
    `gathered` is valid after its `wait`."""
    return _all_gather(gathered, share, group=group, async_op=True)


def gather_rows(tensor: Tensor, group: distributed.ProcessGroup) -> Tensor:
    """Return the tensors [B, ...] of all processes of a group, concatenated by rank to [processes * B, ...]."""
    gathered = tensor.new_empty(group.size() * len(tensor), *tensor.shape[1:])
    start_gather(gathered, tensor.contiguous(), group).wait()
    return gathered


class SequenceParallel:
    """The processes that compute a forward together; pass this object to the model as `options["sequence_parallel"]`.
    All processes pass the same arguments, and each receives the full result."""

    def __init__(self, group: distributed.ProcessGroup) -> None:
        self.group, self.size, self.rank = group, group.size(), group.rank()
        self.exchanges = Exchanges(group)

    def check(self, config: ModelConfig) -> None:
        """Raise InputError if the model's number of heads is not a multiple of the number of processes."""
        if config.num_heads % self.size:
            fitting = [str(size) for size in range(1, config.num_heads + 1) if config.num_heads % size == 0]
            raise InputError(
                f"{self.size} processes cannot share the model's {config.num_heads} heads; {', '.join(fitting)} can"
            )

    def all_agree(self, fine: bool) -> bool:
        """Return whether `fine` is True in every process. All processes must call this method at the same time."""
        backend = distributed.get_backend(self.group)
        flag = torch.tensor([int(fine)], device="cuda" if backend == "nccl" else "cpu")
        distributed.all_reduce(flag, distributed.ReduceOp.MIN, group=self.group)
        return bool(flag.item())

    def cache_config(self, config: ModelConfig) -> ModelConfig:
        """Return the config for this process's KeyValueCache, which has only its share of the heads. Raise InputError
        if the processes cannot share the heads equally."""
        self.check(config)
        return config.shared_by(self.size)

    def share(self, grid: tuple[int, int, int]) -> ParallelShare:
        """Return this process's share of the tokens of a grid (frames, rows, columns). Zeros pad the last shares to
        equal length."""
        frames, frame = grid[0], grid[1] * grid[2]
        tokens = frames * frame
        length = -(-tokens // self.size)
        start, stop = (min(end * length, tokens) for end in (self.rank, self.rank + 1))
        first = min(start // frame, frames - 1)
        last = max(first + 1, -(-stop // frame))
        within = slice(start - first * frame, stop - first * frame)
        return ParallelShare(self, tokens, slice(first, last), within, length)


class TokenShare:
    """The tokens that a process computes in a forward. This base class is for a single process, which computes all
    tokens; the subclass ParallelShare is for several."""

    def latent(self, x: Tensor) -> Tensor:
        return x

    def cut(self, tokens: Tensor) -> Tensor:
        return tokens

    def rope(self, table: Tensor) -> Tensor:
        return table

    def gather(self, tokens: Tensor) -> Tensor:
        return tokens


ALL_TOKENS = TokenShare()


@dataclass(frozen=True)
class ParallelShare(TokenShare):
    """The contiguous range of a forward's tokens that one of several processes computes.

    tokens: the total number of tokens.
    frames: the slice of the latent frames that contain this share's tokens.
    within: the slice that selects this share from the tokens of `frames`.
    length: the number of tokens of each share, including padding.
    """

    parallel: SequenceParallel
    tokens: int
    frames: slice
    within: slice
    length: int

    def latent(self, x: Tensor) -> Tensor:
        """Return the frames of a latent x [B, C, F, H, W] that contain tokens of this share."""
        return x[:, :, self.frames]

    def cut(self, tokens: Tensor) -> Tensor:
        """Return this process's tokens [B, length, C], cut from the tokens [B, n, C] of the latent frames that contain
        them. Zeros pad a share with fewer tokens to `length`."""
        own = tokens[:, self.within]
        return F.pad(own, (0, 0, 0, self.length - own.shape[1]))

    def rope(self, table: Tensor) -> Tensor:
        """Return this share's rows [length, C] of the full video's RoPE table [tokens, C], padded with zeros."""
        own = table[self.parallel.rank * self.length :][: self.length]
        return F.pad(own, (0, 0, 0, self.length - len(own)))

    def gather(self, tokens: Tensor) -> Tensor:
        """Return all tokens [B, tokens, C], gathered from the shares [B, length, C] of all processes."""
        parts = gather_rows(tokens, self.parallel.group)
        return parts.unflatten(0, (self.parallel.size, -1)).transpose(0, 1).flatten(1, 2)[:, : self.tokens]

    def to_heads(self, q_k_v: Iterator[Tensor]) -> list[Tensor]:
        """Return [q, k, v] of all tokens for this process's heads, [tokens, dim / processes] each, by all-to-all.
        `q_k_v` yields q, k and v of this process's tokens for all heads, [length, dim] each."""
        exchanges: list[Exchange] = []
        for share in q_k_v:
            exchanges.append(self.parallel.exchanges.of(share.unflatten(1, (self.parallel.size, -1)).transpose(0, 1)))
            del share  # frees the memory before the next share is computed
            waits = [exchange.wait for exchange in exchanges] if len(exchanges) == 3 else []
            self.parallel.exchanges.run_actions(exchanges[-1].start, *waits)
        return [exchange.received.flatten(0, 1)[: self.tokens] for exchange in exchanges]

    def to_tokens(self, heads: Tensor) -> Tensor:
        """Return the attention result of this process's tokens for all heads, [length, dim], by all-to-all. `heads` is
        the result of all tokens for this process's heads, [tokens, dim / processes]."""
        padding = self.parallel.size * self.length - self.tokens
        heads = F.pad(heads, (0, 0, 0, padding)) if padding else heads
        exchange = self.parallel.exchanges.of(heads.unflatten(0, (self.parallel.size, -1)))
        self.parallel.exchanges.run_actions(exchange.start, exchange.wait)
        return exchange.received.transpose(0, 1).flatten(1)


class Exchange:
    """An all-to-all of tensors [processes, ...]: `sent[i]` goes to process i, and `received[i]` comes from process
    i."""

    def __init__(self, sent: Tensor, received: Tensor, group: distributed.ProcessGroup) -> None:
        self._sent, self.received, self._group = sent, received, group

    def start(self) -> None:
        self._work = distributed.all_to_all_single(self.received, self._sent, group=self._group, async_op=True)

    def wait(self) -> None:
        """Let the current CUDA stream wait until `received` is valid. With NCCL, the process itself does not wait."""
        self._work.wait()
        del self._work


class Exchanges:
    """A factory of all-to-all exchanges among the processes. Pass an exchange's methods `start` and `wait` to
    `run_actions`, which calls them outside CUDA graphs; do not call them directly."""

    PER_BLOCK = 4
    """The number of exchanges in a block: q, k, v and attention's result. Each of the four has static buffers that all
    blocks reuse."""

    run_actions: RunActions

    def __init__(self, group: distributed.ProcessGroup) -> None:
        self._group, self.run_actions = group, _call
        self._memory: dict[tuple, tuple[Tensor, Tensor]] = {}
        self._turn: Iterator[int] | None = None

    def of(self, parts: Tensor) -> Exchange:
        """Return an exchange, not yet started, that will send `parts[i]` to process i. While CUDA graphs are recorded,
        `parts` is copied to a static buffer."""
        if self._turn is None:
            sent = parts.contiguous()
            return Exchange(sent, torch.empty_like(sent), self._group)
        key = next(self._turn), parts.shape, parts.dtype
        if key not in self._memory:
            self._memory[key] = parts.new_empty(parts.shape), parts.new_empty(parts.shape)
        sent, received = self._memory[key]
        return Exchange(sent.copy_(parts), received, self._group)

    @contextmanager
    def recorded_by(self, run_actions: RunActions) -> Iterator[None]:
        """A context manager for recording a forward as several CUDA graphs, with the exchanges between them.
        `run_actions` receives the exchanges' `start` and `wait`. Each call must end a graph, add the received functions
        to the replay, and start the next graph."""
        self.run_actions, self._turn = run_actions, cycle(range(self.PER_BLOCK))
        try:
            yield
        finally:
            self.run_actions, self._turn = _call, None


def _call(*actions: Callable[[], object]) -> None:
    for action in actions:
        action()
