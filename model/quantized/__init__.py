"""Quantized weights in 4 and 8 bits: their encodings, and the parameters that a layer decodes.

`weights/quantized.py` finds them in files."""
