"""Reading of weight files: headers, tensors and quantized weights. Each family of formats has its own module."""
