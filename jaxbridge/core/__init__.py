"""Floor 1: what every part shares. Only jax and numpy are imported here."""
