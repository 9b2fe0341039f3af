"""A walk over a websocket: its messages, the frames sent to a client, and the limits of a connection. The fronts open
the port."""
