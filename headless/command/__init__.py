"""The command line `lingbot-world`: its options and its subcommands."""
