"""Reading of weight files: headers, tensors and quantized weights, with a module for each family of formats."""
