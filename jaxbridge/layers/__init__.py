"""Floor 4: the Keras face."""
