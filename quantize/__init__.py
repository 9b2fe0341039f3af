"""Models made smaller: official weights, of experts, causal models, text encoders or whole packages, to 4-bit files of
the community package's layout; and files checked against the checksums that were written with them."""

from .model import QuantizeOptions, report
from .package import plan_quantize, quantize
from .verify import verify

__all__ = ["QuantizeOptions", "plan_quantize", "quantize", "report", "verify"]
