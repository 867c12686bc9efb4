"""Programs for the codes MG-DTYPE, MG-ATTR, MG-INSTALL, MG-PADDLE and MG-READER."""

import minigraph as mg
from minigraph import nn, static

# MG-DTYPE-001
ids = static.data("ids", [2, 3], "int64")
y = nn.functional.softmax(ids)

# MG-DTYPE-002
x = static.data("x", [2, 3])
y = static.data("y", [2, 3], "float64")
z = mg.matmul(x, y.T)

# MG-DTYPE-003
x = static.data("x", [2, 3], "float31")

# MG-DTYPE-004
x = mg.assign(["one", "two"])

# MG-DTYPE-005
x = static.data("x", [2, 3])
y = static.nn.cond(True, lambda: x, lambda: -x)

# MG-ATTR-001
x = static.data("x", [2, 3])
y = nn.functional.dropout(x, p=1.5)

# MG-ATTR-002
strategy = static.BuildStrategy()
strategy.fuse_gemm_epilog = True

# MG-ATTR-003
sampler = mg.io.BatchSampler(batch_size=32)

# MG-ATTR-004
x = static.data("x", [4, 3])
u, s, vh = mg.linalg.svd(x, full_matrices=True)

# MG-ATTR-005
layer = nn.Linear(4, 3, weight_attr=False)

# MG-INSTALL-001
mg.utils.require_version("3.0")

# MG-PADDLE-001
layer = nn.Conv2D(3, 8, 3)

# MG-READER-001
both = mg.reader.compose(lambda: [1, 2], lambda: [3])
samples = list(both())
