from eagle_eye import __version__ as __version__
