"""A walk over a websocket: its messages, what a client is sent, and what a connection may cost. The fronts listen."""
