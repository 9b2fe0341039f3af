"""Quantization of models, text encoders or packages, and verification of files by their checksums."""

from .model import QuantizeOptions, report
from .package import plan_quantize, quantize
from .verify import verify

__all__ = ["QuantizeOptions", "plan_quantize", "quantize", "report", "verify"]
