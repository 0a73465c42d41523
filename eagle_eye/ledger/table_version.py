"""The version of the ledger's tables, known without loading them."""

VERSION = "0005"
"""The revision of migrations/ that tables.py is."""
