"""What a world is besides its image and prompt: events, which extend the prompt, and the walls of a known map."""
