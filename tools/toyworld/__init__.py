"""A little world of rendered rooms, and the training of the tiny models that the toy package ships.

Nothing here is needed to use the package: it is not in the wheel and not in the node pack."""
