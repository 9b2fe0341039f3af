"""Weights in 4 and 8 bits, found in a file by name, checked, and made into parameters that a layer decodes."""
