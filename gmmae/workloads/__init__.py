"""What is trained: data, model and loss put together, the only place where they meet."""
