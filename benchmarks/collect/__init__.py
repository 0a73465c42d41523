"""What collectors find and cost, and whether they read what other tools read."""
