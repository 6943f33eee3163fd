"""How a network learns: the training loop and what it needs."""
