"""Kernels that follow block tables. They import nothing else of this project.

`dispatch` is the door: attention, cascade attention, append, block copies, gather, scatter and merge, each on Triton or
on torch, by device or by argument. `arguments` and `plan` hold what its functions take. `README.md` is the guide.
"""
