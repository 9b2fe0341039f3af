"""The command `lingbot-world live`: walk through a causal model's world in the browser. The server speaks SGLang's
protocol for realtime video. A walk is a session whose video is made chunk by chunk from the user's keys."""
