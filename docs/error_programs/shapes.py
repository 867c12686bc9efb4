"""Programs for the codes MG-SHAPE; docs/errors_page.py says how they are run."""

import minigraph as mg
from minigraph import nn, static

# MG-SHAPE-001
scores = static.data("scores", [8, 10])
label = static.data("label", [4, 1], "int64")
loss = nn.functional.cross_entropy(scores, label)

# MG-SHAPE-002
row = static.data("row", [3])
lower = mg.tril(row)

# MG-SHAPE-003
x = static.data("x", [2, 3])
total = mg.sum(x, axis=2)

# MG-SHAPE-004
x = static.data("x", [2, 3])
y = static.data("y", [4, 3])
z = x + y

# MG-SHAPE-005
x = static.data("x", [4, 8])
y = static.data("y", [6, 8])
z = mg.matmul(x, y)

# MG-SHAPE-006
x = static.data("x", [2, 3])
y = mg.reshape(x, [4, 2])

# MG-SHAPE-007
x = static.data("x", [None, None])
y = static.nn.fc(x, 10)

# MG-SHAPE-008
x = static.data("x", [8, 3])
y = mg.max(x[8:], axis=0)

# MG-SHAPE-009
x = static.data("x", [2, 3])
y = mg.reshape(x, [-1, -1])
