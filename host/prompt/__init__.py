"""The queued prompt, and texts on its nodes."""
