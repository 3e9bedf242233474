"""Figures as PNG files; nothing else imports matplotlib. They are built as objects: no display, no global state."""
