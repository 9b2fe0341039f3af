"""What a machine can do: its parts, its kernels' trials, its rates, and the seconds of a chunk from these."""
