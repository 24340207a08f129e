"""The arithmetic of weighted particles: trees, weights, resampling, Langevin moves."""
