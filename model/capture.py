"""What all who record CUDA graphs share."""

from threading import Lock

ONE_AT_A_TIME = Lock()
"""Held by who records. torch gives no reserve back to CUDA while another thread records on the GPU."""
