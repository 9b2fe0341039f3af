"""Quantization of models, text encoders or packages (folders with all models for a video), and verification of files by
their checksums. The layout of a quantized package is that of cahlen/lingbot-world-base-cam-nf4 on Hugging Face."""

from .model import QuantizeOptions, report
from .package import plan_quantize, quantize
from .verify import verify

__all__ = ["QuantizeOptions", "plan_quantize", "quantize", "report", "verify"]
