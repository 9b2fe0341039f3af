"""One video's tokens divided among several processes, each of which has a GPU of its own.

All of a block but its self-attention looks at one token at a time. So each process keeps an equal share of the tokens
through all blocks. For the self-attention the processes exchange what they have: each gets all tokens of some of the
heads, attends, and gives the others their tokens back (DeepSpeed-Ulysses, arXiv:2309.14509)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, distributed
from torch.nn import functional as F

from ..errors import InputError
from .config import ModelConfig

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

    def check(self, config: ModelConfig) -> None:
        """Raises InputError for a model whose heads do not divide among the processes."""
        if config.num_heads % self.size:
            fitting = [str(size) for size in range(1, config.num_heads + 1) if config.num_heads % size == 0]
            raise InputError(
                f"{self.size} processes cannot share the model's {config.num_heads} heads; {', '.join(fitting)} can"
            )

    def local(self, config: ModelConfig) -> ModelConfig:
        """The model as one process's attention sees it: with its share of the heads. A KeyValueCache made for it holds
        that share of the keys and values."""
        self.check(config)
        return replace(config, dim=config.dim // self.size, num_heads=config.num_heads // self.size)

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

    def to_heads(self, share: Tensor) -> Exchange:
        """Starts to exchange a tensor [length, dim]; see `all_tokens`."""
        return self._start(share.unflatten(1, (self.parallel.size, -1)).transpose(0, 1))

    def all_tokens(self, exchange: Exchange) -> Tensor:
        """Every token of this process's heads, [tokens, dim / size], of what `to_heads` exchanges."""
        return exchange.wait().flatten(0, 1)[: self.tokens]

    def to_tokens(self, heads: Tensor) -> Tensor:
        """This share of the tokens with all heads, [length, dim], from all tokens [tokens, dim / size] of this
        process's heads."""
        padding = self.parallel.size * self.length - self.tokens
        heads = F.pad(heads, (0, 0, 0, padding)) if padding else heads
        return self._start(heads.unflatten(0, (self.parallel.size, -1))).wait().transpose(0, 1).flatten(1)

    def _start(self, sent: Tensor) -> Exchange:
        """Part i of `sent` goes to process i."""
        sent = sent.contiguous()
        received = torch.empty_like(sent)
        work = distributed.all_to_all_single(received, sent, group=self.parallel.group, async_op=True)
        return Exchange(received, work)


@dataclass(frozen=True)
class Exchange:
    """A tensor on its way between the processes."""

    received: Tensor
    work: distributed.Work

    def wait(self) -> Tensor:
        """What has come; part i is from process i. On a GPU the current stream waits, and not this process."""
        self.work.wait()
        return self.received
