"""PNG and SVG files from plain arrays: the only place of matplotlib."""
