"""The choice of kernels: for each operation, a table of kernels that can compute it, tested once on the user's GPU."""
