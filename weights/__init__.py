"""Weight files: headers, tensors and quantized weights, with one module for each family of formats."""
