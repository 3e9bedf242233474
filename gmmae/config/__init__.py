"""The configuration: every key once, with its type, its rule and its help."""
