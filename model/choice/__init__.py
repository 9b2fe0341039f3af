"""The choice of kernels: a table of kernels for each operation, tested once on the user's GPU."""
