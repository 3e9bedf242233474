"""New nodules from a trained model: making them, inserting them into scans, and judging them."""
