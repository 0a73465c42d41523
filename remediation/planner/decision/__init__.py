"""The decision about one incident: alternatives, their costs, the cheapest one; advice on checkpoint intervals."""
