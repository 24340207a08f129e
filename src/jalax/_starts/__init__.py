"""Where the particles of step 0 come from, one start a file."""
