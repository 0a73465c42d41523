"""Detectors: one file per detector (frame → claims). Their loop is in runtime/, incidents are made in diagnosis/."""

from eagle_eye import __version__ as __version__
