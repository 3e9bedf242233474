"""The same model, data, loss and optimiser in other frameworks, each in a process of its own, timed in turns."""
