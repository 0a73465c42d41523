"""Guards: each lets a plan pass, holds it or refuses it, with its reason. One file = one stage."""

POLICY = ("duplicates", "blast_radius", "approval")
"""Every guard that is asked, in this order; all are asked, so that the ledger holds every reason."""
