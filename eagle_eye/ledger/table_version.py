"""The version of the ledger's tables, known without loading them."""

VERSION = "0006"
"""The revision of migrations/ that tables.py is."""
