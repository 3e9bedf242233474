"""Reference implementations in other frameworks, each in its own process and timed alternately."""
