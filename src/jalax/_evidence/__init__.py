"""Numbers at a theta that stands still: evidence, uncertainty, replay."""
