"""The version of the ledger's tables, known without loading them."""

VERSION = "0007"
"""The revision of migrations/ that tables.py is."""
