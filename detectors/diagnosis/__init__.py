"""Diagnosis: folds findings into incidents with cause, culprits and evidence."""

from .diagnosis import Diagnosis as Diagnosis
