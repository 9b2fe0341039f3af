"""The check of a machine by `lingbot-world doctor`."""
