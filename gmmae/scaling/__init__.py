"""What the project is about."""
