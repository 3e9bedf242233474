"""What is trained: data, model and loss put together."""
