"""The command line: its flags, and the subcommands that are no run."""
