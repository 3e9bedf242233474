"""Figures as PNG and SVG files; nothing else imports matplotlib. They are built as objects: no display, no global state."""
