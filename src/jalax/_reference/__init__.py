"""What an integral is measured against: modes, references, curvature, tempering."""
