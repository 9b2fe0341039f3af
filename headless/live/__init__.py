"""The command `lingbot-world live`, which serves a page to walk through a causal model's world. The server uses
SGLang's protocol for realtime video.

A walk is a video that a user steers with keys while the model generates it chunk by chunk.
"""
