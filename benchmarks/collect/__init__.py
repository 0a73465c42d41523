"""What collectors cost, and whether they read what other tools read."""
