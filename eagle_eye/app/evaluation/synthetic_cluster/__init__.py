"""`eagle-eye evaluate cluster`: a synthetic cluster from a seed, with every kind of fault and its innocent twins, for our detectors and those of others.

It is made for users to test detectors with, so it is a part of the wheel. Nothing of it runs in a service.
"""
