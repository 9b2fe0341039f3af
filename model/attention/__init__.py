"""Attention: exact, and in 8 bits."""
