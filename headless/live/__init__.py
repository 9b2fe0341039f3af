"""The command `lingbot-world live`: a server, with SGLang's protocol for realtime video, and a page to walk through a
causal model's world. A walk is a video that a user steers while the model generates it chunk by chunk."""
