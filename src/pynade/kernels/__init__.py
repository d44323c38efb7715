"""The NADE recurrence (eqs. 2, 4, 5) and its sampler: one signature, three implementations.

`reference` is plain torch; `numba` and `triton` are fused loops for the CPU and for CUDA that never store the
(B, D, H) activations. The three agree up to rounding, and all are differentiable.
"""

from pynade.kernels.backends import Uniforms, recurrence, sample

__all__ = ["Uniforms", "recurrence", "sample"]
