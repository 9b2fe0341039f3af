"""What is not shipped: benchmarks, measurements, the workflow generator, the training of the toy."""
