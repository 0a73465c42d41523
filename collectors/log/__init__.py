"""Log lines: followed as they are written, and what they say."""
