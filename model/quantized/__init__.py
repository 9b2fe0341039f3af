"""Quantized weights in 4 and 8 bits: their formats, and the parameters that decode them."""
