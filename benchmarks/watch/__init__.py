"""Whether what goes wrong is found, and nobody else accused: on frames made for it, and on data of real clusters."""
