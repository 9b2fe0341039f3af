"""The command `lingbot-world live`: a server and a page for walks, videos that a user steers while they are
generated."""
