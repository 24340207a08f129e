"""Other ways to say a model: constraints, formulas, NumPyro."""
