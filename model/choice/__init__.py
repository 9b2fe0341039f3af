"""The choice of kernels: a table of candidates for each kind of work, tested once on the user's GPU."""
