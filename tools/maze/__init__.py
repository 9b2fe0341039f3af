"""The toy's next world: a maze to walk in, its pictures, and the training of models that know it."""
