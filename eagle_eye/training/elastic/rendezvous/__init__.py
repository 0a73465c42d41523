"""The key-value store through which the workers of an epoch find each other: its client in the worker, and the store that the launcher keeps."""
