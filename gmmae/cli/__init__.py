"""The command `gmmae`: one module for each subcommand."""
