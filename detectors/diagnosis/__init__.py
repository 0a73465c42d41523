from .diagnosis import Diagnosis as Diagnosis
