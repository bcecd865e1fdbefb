"""Calls: validation, plans, pointer tables, threads, autograd."""
