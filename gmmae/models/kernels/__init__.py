"""Functions that exist for speed only, each beside a plain form that tests compare it with."""
