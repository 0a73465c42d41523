"""Sources of what a site knows of its nodes: where each of them is."""
