"""Kernels that follow block tables. They import nothing else of this project.

`dispatch` is the door: attention, append, block copies, gather, scatter and merge, each on Triton or on torch, by
device or by argument; `cascade` is made of them. `arguments` and `plan` hold what they take. `README.md` is the guide.
"""
