"""From a trained model to new nodules, and how to judge them."""
