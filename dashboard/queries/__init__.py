"""What the pages ask, as typed values: no page builds a query, and nothing here knows how it is shown.

Times are seconds since 1970. Arrays are numpy's; NaN is what was not read. Numbers are aggregated by DuckDB and the
ledger's database; what comes out is as large as what can be shown. Every function may raise NotShown (dashboard/errors.py).
"""
