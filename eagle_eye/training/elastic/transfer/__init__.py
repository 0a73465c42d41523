"""State transfer between workers: offers and choices, transports, verification."""
