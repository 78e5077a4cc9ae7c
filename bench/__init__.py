"""The workbench: where spec, implementation and kernels meet."""
