"""Tools that are not shipped: benchmarks, measurements, the generator of workflows, the training of the toy."""
