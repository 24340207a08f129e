"""How programs run: compiled, cached, on devices and processes, with files and failures."""
