"""What `round` makes of numbers, shared by the tests and the GPU checks."""

from __future__ import annotations

import numpy as np

ROUNDED = {  # as Paddle 2.6.2 does it on a CPU, the sign of zero too
    -2.5: -3.0, -1.5: -2.0, -0.5: -1.0, -0.2: -0.0, -0.0: -0.0, 0.25: 0.0, 0.5: 1.0, 1.5: 2.0, 2.5: 3.0,
    100.5: 101.0, np.inf: np.inf, -np.inf: -np.inf,
}  # fmt: skip
LARGE = {  # where adding 0.5 first would be wrong
    "float64": {0.49999999999999994: 0.0, 8388609.5: 8388610.0, 4503599627370497.5: 4503599627370498.0,
                4503599627370497.0: 4503599627370497.0, 1e300: 1e300},
    "float32": {0.49999997: 0.0, 8388609.0: 8388609.0, 4194304.5: 4194305.0},
    "float16": {0.4998: 0.0, 1023.5: 1024.0, 2049.0: 2049.0},
    "bfloat16": {0.498: 0.0, 127.5: 128.0, 255.0: 255.0},
}  # fmt: skip
