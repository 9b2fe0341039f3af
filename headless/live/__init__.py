"""`lingbot-world live`: a causal model's world in the browser, over SGLang's protocol for realtime video."""
