"""The command `lingbot-world live`: a server and a page for steering videos (walks) while they are generated."""
