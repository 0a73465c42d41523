"""The spread of values of which some are far off."""

NORMAL_MAD = 1.4826
"""Times the median absolute deviation: the standard deviation, if the values are normally distributed."""
