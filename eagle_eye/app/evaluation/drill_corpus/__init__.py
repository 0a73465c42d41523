"""`eagle-eye evaluate drills`: synthetic incidents from a seed, faults and innocent twins of every class, through the whole chain.

It is made for users to test detectors and diagnosis with, so it is a part of the wheel. Nothing of it runs in a service.
"""
