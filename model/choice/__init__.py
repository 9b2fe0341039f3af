"""The table of kernels: the candidates for each kind of work on each card, tested once on the user's card."""
