"""The toy's world, a maze to walk in: its pictures, and the training of the models that know it. Not shipped."""
