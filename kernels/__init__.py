"""Kernels that follow block tables. They import nothing else of this project."""
