"""Actions: one file = one repair. Each yields its progress, intended before done."""
