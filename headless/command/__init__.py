"""The command line: its flags and its subcommands."""
