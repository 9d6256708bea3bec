"""Writes the synchronous twins: see `__main__`, and `tables` for what they have of their own."""
