"""What runs a fit and hands it back: loop, driver, callbacks, checkpoint, conclusion, result."""
