"""Pictures and tables of numbers that are known already; imported when first used."""
