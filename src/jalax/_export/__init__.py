"""What people look at: tables, plots, pages and other libraries' formats.

Nothing here is imported by `import jalax`: methods of `FitResult` and `Comparison` import the
module they need when they are called.
"""
