"""Quantization of models, text encoders or whole packages to smaller files in the community package's layout, and
verification of files by the checksums written with them."""

from .model import QuantizeOptions, report
from .package import plan_quantize, quantize
from .verify import verify

__all__ = ["QuantizeOptions", "plan_quantize", "quantize", "report", "verify"]
