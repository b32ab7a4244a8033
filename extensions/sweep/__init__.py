"""The same study for several models, lengths and numbers of GPUs: one table, one figure."""
