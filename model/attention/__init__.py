"""Attention functions: exact ones, and faster ones that first round queries, keys and values to 8 bits."""
