"""The LingBot-World transformer, which predicts a velocity from latent, timestep, prompt and camera."""

import logging
from typing import Any, cast

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from ..options import Arithmetic, AttentionMode
from .attention.choose_8bit import attend_8bit
from .attention.exact import Attention, sdpa, uses_our_kernel
from .cache import CameraCache
from .config import PATCH, ModelConfig
from .forward import NO_OPTIONS, Camera, ForwardInputs, ForwardOptions, Rope, Times, check_inputs
from .layers.attention import SelfAttention
from .layers.block import Block, residual_mlp
from .layers.head import EMBEDDING_TOKENS, Head, sinusoid
from .layers.operations import Operations, TorchOperations, prepared_layers
from .layers.residual import Residual, residuals
from .layers.rope import AS_TRAINED, RopeScale, rope_table
from .ops.implementation import slices
from .ops.linear_8bit import suited_arithmetic
from .ops.pointwise import residual_dtype
from .parallel import ALL_TOKENS, TokenShare

MAX_TIMES = 128
"""A cache of time embeddings has at most this many entries. A full cache is emptied before the next entry."""


class LingBotWorldModel(nn.Module):
    """A LingBot-World transformer: an expert of the base model, or a causal model.

    operations: a namespace of layer classes (see layers/operations.py).
    attention: the self-attention function (see attention/exact.py).
    cross_attention: the function for attention to the prompt; None means `attention`.
    dtype: the dtype of parameters and matrix products; None means torch's default.
    in_step: whether other processes run the same forwards; if so, no failed forward is retried.
    """

    attention_mode: AttentionMode = "auto"
    attention_8bit: Attention = staticmethod(attend_8bit)
    """The self-attention function that `set_attention("8bit")` selects. A host such as ComfyUI may override it."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        operations: Operations = TorchOperations,
        attention: Attention = sdpa,
        cross_attention: Attention | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        linear, dim = operations.Linear, config.dim
        self.config, self.compute_dtype, self.in_step = config, dtype or torch.get_default_dtype(), False
        self.patch_embedding = operations.Conv3d(config.in_dim, dim, kernel_size=PATCH, stride=PATCH, **factory)
        self.text_embedding = nn.Sequential(
            linear(config.text_dim, dim, **factory), nn.GELU("tanh"), linear(dim, dim, **factory)
        )
        self.time_embedding = nn.Sequential(
            linear(config.freq_dim, dim, **factory), nn.SiLU(), linear(dim, dim, **factory)
        )
        self.time_projection = nn.Sequential(nn.SiLU(), linear(dim, 6 * dim, **factory))
        if config.control is not None:
            self.patch_embedding_wancamctrl = linear(config.control_channels * 4, dim, **factory)
            self.c2ws_hidden_states_layer1 = linear(dim, dim, **factory)
            self.c2ws_hidden_states_layer2 = linear(dim, dim, **factory)
        self._attentions = attention, cross_attention or attention
        self.blocks = nn.ModuleList(
            Block(index, config, operations, self._attentions, **factory) for index in range(config.num_layers)
        )
        self.head = Head(config, operations, **factory)

    def set_arithmetic(self, arithmetic: Arithmetic, *, own_format: bool = False) -> None:
        """Set the number format of matrix products in the blocks' linear layers, except those for the prompt's keys and
        values.

        own_format: with 8-bit `arithmetic`, whether NVFP4 and MXFP8 weights multiply in NVFP4 and MXFP8 instead.
        """
        arithmetic = suited_arithmetic(arithmetic, self.head.modulation.device)
        for name, layer in self.blocks.named_modules():
            if isinstance(layer, nn.Linear) and not name.endswith(("cross_attn.k", "cross_attn.v")):
                layer.arithmetic = arithmetic  # type: ignore[assignment]
                layer.own_format = own_format  # type: ignore[assignment]

    def set_attention(self, mode: AttentionMode) -> None:
        """Set self-attention to "exact" ("auto" means the same) or "8bit". Cross-attention stays exact."""
        self.attention_mode = mode
        for layer in self.blocks.modules():
            if isinstance(layer, SelfAttention):
                layer.in_8_bits = mode == "8bit"
                layer.attention = self.attention_8bit if layer.in_8_bits else self._attentions[0]

    @torch.no_grad()
    def forward(
        self,
        x: Tensor,
        timestep: Tensor,
        context: Tensor,
        camera: Tensor | None = None,
        options: ForwardOptions = NO_OPTIONS,
    ) -> Tensor:
        """Return the velocity [B, 16, F, H, W] in fp32, or in fp64 for an fp64 model. Raise InputError or CameraError
        for invalid shapes.

        x: noisy latent, mask and image latent, concatenated to [B, 36, F, H, W].
        timestep: [B] or [1], 0 to 1000.
        context: prompts [B or 1, L, text_dim].
        camera: [B or 1, 384, F, H, W], or 448 channels for an action model.
        """
        check_inputs(x, timestep, context, camera, self.config)
        cache = None if torch.compiler.is_compiling() else options.get("camera_cache")
        history = options.get("kv_cache")
        if history is not None:
            history.check(x)
        once = "sequence_parallel" in options or (history is not None and not history.repeatable)
        if cache is None or self.in_step or once:
            return self._velocity(x, timestep, context, camera, options)
        try:
            return self._velocity(x, timestep, context, camera, options)
        except Exception as error:
            if not (self.out_of_memory(error) and cache.give_up()):
                raise
        logging.warning("The camera cache did not fit next to the step: the step is repeated without it.")
        torch.cuda.empty_cache()
        return self._velocity(x, timestep, context, camera, options)

    def out_of_memory(self, error: Exception) -> bool:
        """Whether a forward's exception means that memory ran out. A host such as ComfyUI may override this."""
        return isinstance(error, torch.OutOfMemoryError)

    def _velocity(
        self, x: Tensor, timestep: Tensor, context: Tensor, camera: Tensor | None, options: ForwardOptions
    ) -> Tensor:
        residual = residual_dtype(self.compute_dtype)
        grid = (x.shape[2], x.shape[3] // 2, x.shape[4] // 2)
        share, parallel, embedded = ALL_TOKENS, options.get("sequence_parallel"), None
        if parallel is not None:
            parallel.check(self.config)
            share = parallel.share(grid)
            options = {**options, "token_share": share}
        if camera is not None:
            embedded = self.embed_camera(camera.to(x.device), options.get("camera_cache"), share)
        cache = None if embedded is None else embedded.cache
        prompts, lengths = self._embed_prompts(context.to(x.device), len(x), cache)
        history = options.get("kv_cache")
        first_frame = 0 if history is None else history.first_frame
        cos, sin = rope_table(grid, self.config.head_dim, x.device, first_frame, self.rope_scale(options))
        rope = share.rope(cos).to(residual), share.rope(sin).to(residual)
        times = self._times(timestep.to(x.device).expand(len(x)), options)
        given, graphs = ForwardInputs(share.latent(x), times, prompts, embedded, rope, lengths), options.get("graphs")
        tokens = self._predict(given, options) if graphs is None else graphs.run(self._predict, given, options)
        frames, height, width = grid
        return rearrange(
            share.gather(tokens), "b (f h w) (p q c) -> b c f (h p) (w q)", f=frames, h=height, w=width, p=2, q=2
        )

    def _predict(self, given: ForwardInputs, options: ForwardOptions) -> Tensor:
        """Return the velocity [B, tokens, 4*16] of this process's tokens (2x2 patches of 16 channels). CUDA graphs
        record this part of a forward."""
        e, e0 = given.times
        x = options.get("token_share", ALL_TOKENS).cut(self.embed_patches(given.x))
        rows: list[Residual] = []
        if self.stream_is_private(options):  # else the options stay the host's own object
            options = {**options, "residuals": rows, "prompt_lengths": given.lengths}
            rows += residuals(x, self._defers_all(x, options))
        for index, block in enumerate(self.blocks):
            x = self.run_block(index, block, x, e0, given.context, given.camera, given.rope, options)
        for row in rows:
            row.settle()
        return self.head(x, e)

    def _defers_all(self, x: Tensor, options: ForwardOptions) -> bool:
        """Whether all batch elements, not only the last, defer their residual additions to the next norm. True if every
        block's self-attention quantizes q, k and v one by one."""
        return all(cast(Block, block).self_attn.makes_operands(x.device, options) for block in self.blocks)

    def _times(self, timestep: Tensor, options: ForwardOptions) -> Times:
        kept, number = options.get("times"), options.get("timestep")
        if kept is None or number is None:
            return self.embed_time(timestep)
        key = number, len(timestep), options.get("weights")
        if key not in kept:
            if len(kept) >= MAX_TIMES:  # the weights have moved, so old entries are stale
                kept.clear()
            kept[key] = self.embed_time(timestep)
        return kept[key]

    def _embed_prompts(self, prompts: Tensor, rows: int, cache: CameraCache | None) -> tuple[Tensor, Tensor | None]:
        # then one padding token is enough: `attend_to_padded` weights it like all padding tokens
        short = prompts.device.type == "cpu" and self._attentions[1] is sdpa
        tokens = min(prompts.shape[1] + 1, self.config.text_len) if short else None
        if cache is None or not cache.prompt.attach(prompts):
            return self.embed_text(prompts, tokens).expand(rows, -1, -1), self._lengths(prompts, rows)
        if cache.prompt.embedded is None or len(cache.prompt.embedded) != rows:
            cache.prompt.embedded = self.embed_text(prompts, tokens).expand(rows, -1, -1)
            cache.prompt.lengths = self._lengths(prompts, rows)
        return cache.prompt.embedded, cache.prompt.lengths

    def _lengths(self, prompts: Tensor, rows: int) -> Tensor | None:
        """Return the prompts' lengths without padding, int32 [rows], or None if attention does not skip padding."""
        config = self.config
        if not uses_our_kernel(prompts.new_empty(0, config.dim, dtype=self.compute_dtype), config.num_heads):
            return None
        numbers = torch.arange(1, prompts.shape[1] + 1, device=prompts.device, dtype=torch.int32)
        return (numbers * (prompts != 0).any(-1)).amax(1).expand(rows).contiguous()

    def rope_scale(self, options: ForwardOptions) -> RopeScale:  # noqa: ARG002
        """Return the scale and shift of token positions for RoPE, by default those of training. A host may override
        this."""
        return AS_TRAINED

    def stream_is_private(self, options: ForwardOptions) -> bool:  # noqa: ARG002
        """Whether no other code reads or changes the residual stream between blocks. A host that patches the stream
        overrides this."""
        return True

    def run_block(
        self,
        index: int,  # noqa: ARG002
        block: nn.Module,
        x: Tensor,
        e0: Tensor,
        context: Tensor,
        camera: Camera | None,
        rope: Rope,
        options: ForwardOptions,
    ) -> Tensor:
        """Run a block and return the residual stream [B, tokens, dim] after it. `x` may be overwritten. A host may
        override this."""
        return block(x, e0, context, camera, rope, options, inplace=True)

    def embed_time(self, timestep: Tensor) -> tuple[Tensor, Tensor]:
        """Return the time embedding [B, dim] and the blocks' modulation [B, 6, dim] for `timestep` [B], 0 to 1000."""
        e = sinusoid(timestep, self.config.freq_dim).to(residual_dtype(self.compute_dtype))
        e = self.time_embedding(e)
        return e, self.time_projection(e).unflatten(1, (6, -1))

    def embed_text(self, context: Tensor, tokens: int | None = None) -> Tensor:
        """Pad the prompts `context` [B, L, text_dim] with zeros to `tokens` tokens (None: text_len), and embed them.
        Return [B, tokens, dim]."""
        missing = max(0, (tokens or self.config.text_len) - context.shape[1])
        return self.text_embedding(F.pad(context.to(self.compute_dtype), (0, 0, 0, missing)))

    def embed_camera(self, camera: Tensor, cache: CameraCache | None = None, share: TokenShare = ALL_TOKENS) -> Camera:
        """Embed `camera` [B, 384 or 448, F, H, W], or read its tokens from `cache`. Return only the tokens of `share`.
        If all batch elements are equal, embed only one."""
        if len(camera) > 1 and torch.equal(camera, camera[:1].expand_as(camera)):
            camera = camera[:1]
        if torch.compiler.is_compiling() or cache is None or not cache.attach(camera):
            return Camera(share.cut(self._camera_tokens(share.latent(camera))))
        if cache.tokens is None:
            cache.tokens = share.cut(self._camera_tokens(share.latent(camera)))
        return Camera(cache.tokens, cache)

    def embed_patches(self, x: Tensor) -> Tensor:
        """Return tokens [B, F * H/2 * W/2, dim] of a latent x [B, 36, F, H, W], in the residual stream's dtype."""
        tokens = x.shape[2] * (x.shape[3] // 2) * (x.shape[4] // 2)
        out = x.new_empty(len(x), tokens, self.config.dim, dtype=residual_dtype(self.compute_dtype))
        for row, latent in zip(out, x, strict=True):
            row.copy_(self.patch_embedding(latent[None].to(self.compute_dtype))[0].flatten(1).t())
        return out

    def _camera_tokens(self, camera: Tensor) -> Tensor:
        patches = rearrange(
            camera.to(self.compute_dtype), "b c f (h p) (w q) -> b (f h w) (c p q)", p=PATCH[1], q=PATCH[2]
        )
        layers = self.patch_embedding_wancamctrl, self.c2ws_hidden_states_layer1, self.c2ws_hidden_states_layer2
        out = patches.new_empty(*patches.shape[:2], self.config.dim)
        with prepared_layers(patches, *layers) as (embed, first, second):
            for row, tokens in zip(out, patches, strict=True):
                for part in slices(len(tokens), EMBEDDING_TOKENS):
                    row[part] = residual_mlp(embed(tokens[part]), first, second)
        return out
