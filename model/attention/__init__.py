"""Attention functions, exact or over 8-bit queries, keys and values."""
