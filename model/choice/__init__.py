"""The one table of kernels: what computes what on which card, tried once on the user's own."""
