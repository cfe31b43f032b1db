"""Official raw files to columnar files: one module for each data set."""
