"""The layers of a transformer block: attention, residual stream, RoPE, and linear layers with quantized weights."""
