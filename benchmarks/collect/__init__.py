"""What collectors find, and what they cost."""
