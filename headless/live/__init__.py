"""The command `lingbot-world live`: walk through a causal model's world in the browser. The server speaks SGLang's
protocol for realtime video. A walk is an interactive session: its video is generated chunk by chunk from the user's
keys."""
