"""What runs on this machine, whether it is right, and how fast it is."""
