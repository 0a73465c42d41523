"""The workers of one node: started, heard, watched, looked into and ended."""
