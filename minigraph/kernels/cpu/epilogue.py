"""What follows on a product of matrices while its sums still lie in a core's first cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class ProductEpilogue(NamedTuple):
    """Bias, then relu, or the mask of a relu before: of a float32 product of M rows and N columns.

    by_numpy  the same on the whole product, in place: for products that BLAS computes
    bias      [N], added to each row
    relu      whether numbers below 0 become 0
    mask      uint8 [M, 16 * ceil(N / 128)], zeros beyond N bits. With `relu` bits are written: whether a number is
              above 0. Without, numbers whose bit is 0 become 0
    """

    by_numpy: Callable[[np.ndarray], object]
    bias: np.ndarray | None = None
    relu: bool = False
    mask: np.ndarray | None = None

    def check(self, out: np.ndarray) -> None:
        """These are arrays for this product. Errors: ValueError; machine code would write other memory."""
        (m, n), bias, mask = out.shape, self.bias, self.mask
        fits = bias is None or (bias.shape == (n,) and bias.dtype == np.float32 and bias.flags.c_contiguous)
        if mask is not None:
            fits &= mask.shape == (m, -(-n // 128) * 16) and mask.dtype == np.uint8 and mask.flags.c_contiguous
            fits &= mask.flags.writeable or not self.relu
        if not fits:
            raise ValueError(f"bias {_shown(bias)} and mask {_shown(mask)} are not those of float32[{m}, {n}]")


def _shown(x: np.ndarray | None) -> str:
    return "None" if x is None else f"{x.dtype}{list(x.shape)} with strides {list(x.strides)}"
