"""The command line: one function a subcommand, exit codes, one-line errors."""
