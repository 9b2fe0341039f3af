"""The command `lingbot-world live`: walk through a causal model's world in the browser. The server speaks SGLang's
protocol for realtime video. A walk is a session with a video that the user's keys make chunk by chunk."""
