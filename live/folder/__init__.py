"""The folder in which a walk (a steered video) is saved."""
