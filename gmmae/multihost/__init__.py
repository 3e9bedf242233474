"""Several processes that train together: who they are, what they must agree on, and who watches them."""
