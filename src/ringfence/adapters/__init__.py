"""Sandboxes for agents' frameworks: one module a framework, each with an extra of the same name.

Nothing here is imported before it is asked for, since each module imports its framework.
"""
