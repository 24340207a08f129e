"""log p, and what is derived from it: gradients, information, batches, groups and checks."""
