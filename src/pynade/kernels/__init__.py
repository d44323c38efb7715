"""The NADE recurrence (eqs. 2, 4, 5) and its samplers: one signature, three implementations.

`reference` is plain torch; `numba` and `triton` are fused loops for the CPU and for CUDA that never store the
(B, D, H) activations. All three agree to rounding, and autograd works through all of them.
"""

from pynade.kernels.dispatch import recurrence, sample_bernoulli, sample_mixture
from pynade.kernels.uniforms import Uniforms

__all__ = ["Uniforms", "recurrence", "sample_bernoulli", "sample_mixture"]
