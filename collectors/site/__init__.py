"""What a site knows and shows of its nodes: where each of them is, and the pages of its exporters."""
