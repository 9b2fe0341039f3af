"""Weights in 4 and 8 bits: how numbers become bytes, and the parameters that a layer decodes. `weights/quantized.py`
finds them in files."""
