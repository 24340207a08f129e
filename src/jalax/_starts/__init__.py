"""Where the particles of step 0 come from: one file a start."""
