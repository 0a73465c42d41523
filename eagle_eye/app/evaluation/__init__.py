"""`eagle-eye evaluate`: collectors, detectors and diagnosis on labelled data; the verdicts are compared with the labels.

One file of `data_sets/` is the adapter of one data set: a function `figures(folder)` that yields what was found, beside goal and what others reach.
`log_chain.py` and `job_steps.py` lead logs and step times through the chain that runs live.
"""
