"""`eagle-eye server`: one process, its roles (detect, lead) and its background services."""
