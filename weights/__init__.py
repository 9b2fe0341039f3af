"""Files of weights: headers, tensors, and weights in fewer bits, one file for each family of formats."""
