"""One algorithm a file, with the parts of JALA-EM beside it."""
