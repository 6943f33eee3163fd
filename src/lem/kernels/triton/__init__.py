"""LEM on GPUs by Triton. The modules with kernels import Triton; `paths` does not."""
