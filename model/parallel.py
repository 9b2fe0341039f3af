"""One video's tokens divided among several processes, each of which has a GPU of its own.

All of a block but its self-attention looks at one token at a time. So each process keeps an equal share of the tokens
through all blocks. For the self-attention the processes exchange what they have: each gets all tokens of some of the
heads, attends, and gives the others their tokens back (DeepSpeed-Ulysses, arXiv:2309.14509)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor, distributed
from torch.nn import functional as F

from ..errors import InputError
from .config import ModelConfig

Between = Callable[..., None]
"""Takes functions without arguments, to be called between two kernels."""

# torch before 2.13 has the second name alone
_all_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor


def start_gather(gathered: Tensor, share: Tensor, group: distributed.ProcessGroup) -> distributed.Work:
    """Starts to gather every process's share, of one shape, into `gathered`, in their order."""
    return _all_gather(gathered, share, group=group, async_op=True)


def gather_rows(tensor: Tensor, group: distributed.ProcessGroup) -> Tensor:
    """The rows [B, ...] of every process of a group, [size * B, ...], in their order."""
    gathered = tensor.new_empty(group.size() * len(tensor), *tensor.shape[1:])
    start_gather(gathered, tensor.contiguous(), group).wait()
    return gathered


class SequenceParallel:
    """The processes that compute a forward together; give one to the model as `options["sequence_parallel"]`.

    All of them call the model with the same arguments, and each gets the whole result."""

    def __init__(self, group: distributed.ProcessGroup) -> None:
        self.group, self.size, self.rank = group, group.size(), group.rank()
        self.exchanges = Exchanges(group)

    def check(self, config: ModelConfig) -> None:
        """Raises InputError for a model whose heads do not divide among the processes."""
        if config.num_heads % self.size:
            fitting = [str(size) for size in range(1, config.num_heads + 1) if config.num_heads % size == 0]
            raise InputError(
                f"{self.size} processes cannot share the model's {config.num_heads} heads; {', '.join(fitting)} can"
            )

    def all_agree(self, fine: bool) -> bool:
        """Return whether every process is fine. All of them call this at the same place."""
        backend = distributed.get_backend(self.group)
        flag = torch.tensor([int(fine)], device="cuda" if backend == "nccl" else "cpu")
        distributed.all_reduce(flag, distributed.ReduceOp.MIN, group=self.group)
        return bool(flag.item())

    def local(self, config: ModelConfig) -> ModelConfig:
        """`ModelConfig.shared_by` these processes. A KeyValueCache made for it holds its share of keys and values."""
        self.check(config)
        return config.shared_by(self.size)

    def share(self, grid: tuple[int, int, int]) -> TokenShare:
        """This process's tokens of a grid of frames, rows and columns. The shares are equal; where the tokens do not
        divide, the last ones are filled up with tokens of zeros, which attention never sees."""
        frames, frame = grid[0], grid[1] * grid[2]
        tokens = frames * frame
        length = -(-tokens // self.size)
        start, stop = (min(end * length, tokens) for end in (self.rank, self.rank + 1))
        first = min(start // frame, frames - 1)
        last = max(first + 1, -(-stop // frame))
        return TokenShare(self, tokens, slice(first, last), slice(start - first * frame, stop - first * frame), length)


class WholeVideo:
    """All tokens: a process that computes a forward alone."""

    def latent(self, x: Tensor) -> Tensor:
        return x

    def cut(self, tokens: Tensor) -> Tensor:
        return tokens

    def rope(self, table: Tensor) -> Tensor:
        return table

    def gather(self, tokens: Tensor) -> Tensor:
        return tokens


WHOLE_VIDEO = WholeVideo()


@dataclass(frozen=True)
class TokenShare(WholeVideo):
    """One process's tokens: `length` of them, of `tokens` in all. They lie in the latent frames `frames`, there in the
    slice `within`."""

    parallel: SequenceParallel
    tokens: int
    frames: slice
    within: slice
    length: int

    def latent(self, x: Tensor) -> Tensor:
        """The latent frames of [B, C, F, H, W] that have tokens of this share."""
        return x[:, :, self.frames]

    def cut(self, tokens: Tensor) -> Tensor:
        """This share, [B, length, C], of the tokens [B, n, C] of its latent frames."""
        own = tokens[:, self.within]
        return F.pad(own, (0, 0, 0, self.length - own.shape[1]))

    def rope(self, table: Tensor) -> Tensor:
        """This share, [length, C], of a table [tokens, C] for the whole video."""
        own = table[self.parallel.rank * self.length :][: self.length]
        return F.pad(own, (0, 0, 0, self.length - len(own)))

    def gather(self, tokens: Tensor) -> Tensor:
        """All tokens [B, tokens, C], from every process's share [B, length, C]."""
        parts = gather_rows(tokens, self.parallel.group)
        return parts.unflatten(0, (self.parallel.size, -1)).transpose(0, 1).flatten(1, 2)[:, : self.tokens]

    def to_heads(self, q_k_v: Iterator[Tensor]) -> list[Tensor]:
        """Every token of this process's heads, [tokens, dim / size], of q, k and v [length, dim]. Each is exchanged
        while the next is computed."""
        exchanges: list[Exchange] = []
        for share in q_k_v:
            exchanges.append(self.parallel.exchanges.of(share.unflatten(1, (self.parallel.size, -1)).transpose(0, 1)))
            del share  # before the next is computed
            waits = [exchange.wait for exchange in exchanges] if len(exchanges) == 3 else []
            self.parallel.exchanges.between(exchanges[-1].start, *waits)
        return [exchange.received.flatten(0, 1)[: self.tokens] for exchange in exchanges]

    def to_tokens(self, heads: Tensor) -> Tensor:
        """This share of the tokens with all heads, [length, dim], from all tokens [tokens, dim / size] of this
        process's heads."""
        padding = self.parallel.size * self.length - self.tokens
        heads = F.pad(heads, (0, 0, 0, padding)) if padding else heads
        exchange = self.parallel.exchanges.of(heads.unflatten(0, (self.parallel.size, -1)))
        self.parallel.exchanges.between(exchange.start, exchange.wait)
        return exchange.received.transpose(0, 1).flatten(1)

    def recorded_by(self, between: Between) -> AbstractContextManager[None]:
        """Inside it exchanges are handed to `between` in place of being made, in memory that stays theirs."""
        return self.parallel.exchanges.recorded_by(between)


class Exchange:
    """A tensor [size, ...] on its way between the processes: part i of `sent` goes to process i, part i of `received`
    is from process i."""

    def __init__(self, sent: Tensor, received: Tensor, group: distributed.ProcessGroup) -> None:
        self._sent, self.received, self._group = sent, received, group

    def start(self) -> None:
        self._work = distributed.all_to_all_single(self.received, self._sent, group=self._group, async_op=True)

    def wait(self) -> None:
        """On a GPU the current stream waits, and not this process."""
        self._work.wait()
        del self._work


class Exchanges:
    """Makes exchanges. `between` does something between two kernels: it calls it, unless kernels are recorded."""

    IN_TURNS = 4
    """Recorded exchanges that have memory of their own: those of q, k, v and of what comes back. A block's are done
    with before the next block's start."""

    between: Between

    def __init__(self, group: distributed.ProcessGroup) -> None:
        self._group, self.between = group, _call
        self._memory: dict[tuple, tuple[Tensor, Tensor]] = {}
        self._turn: Iterator[int] | None = None

    def of(self, parts: Tensor) -> Exchange:
        """Exchange of a tensor [size, ...]."""
        if self._turn is None:
            sent = parts.contiguous()
            return Exchange(sent, torch.empty_like(sent), self._group)
        key = next(self._turn), parts.shape, parts.dtype
        if key not in self._memory:
            self._memory[key] = parts.new_empty(parts.shape), parts.new_empty(parts.shape)
        sent, received = self._memory[key]
        return Exchange(sent.copy_(parts), received, self._group)

    @contextmanager
    def recorded_by(self, between: Between) -> Iterator[None]:
        """See `TokenShare.recorded_by`."""
        self.between, self._turn = between, cycle(range(self.IN_TURNS))
        try:
            yield
        finally:
            self.between, self._turn = _call, None


def _call(*actions: Callable[[], object]) -> None:
    for action in actions:
        action()
