"""Programs for the codes MG-PROGRAM and MG-VERIFY."""

import numpy as np

import minigraph as mg
from minigraph import nn, static
from minigraph.compiler.validate import validate
from minigraph.ir.convert import to_graph
from minigraph.ir.text import parse
from minigraph.ir.verify import verify

# MG-PROGRAM-001
y = mg.tanh([0.5, 1.0])

# MG-PROGRAM-002
x = static.data("features", [2, 3])
found = static.default_main_program().global_block().var("feature")

# MG-PROGRAM-003
with static.program_guard(static.Program("other")):
    x = static.data("x", [2, 3])
y = mg.tanh(static.data("x", [2, 3])) + x

# MG-PROGRAM-004
x = static.data("x", [2, 3])
y = mg.tanh(x)
compiled = static.CompiledProgram(static.default_main_program())
print(compiled.explain())
z = mg.exp(y)
print(compiled.explain())

# MG-PROGRAM-005
x = static.data("x", [2, 3])
mg.optimizer.SGD(0.1).minimize(mg.mean(x))

# MG-PROGRAM-006
x = static.data("x", [2, 3])
y = static.data("x", [4])

# MG-PROGRAM-007
sgd = mg.optimizer.SGD(0.1)
loss = mg.mean(nn.Linear(3, 1)(static.data("x", [2, 3])))
sgd.minimize(loss)
sgd.minimize(loss)

# MG-PROGRAM-008
x = static.data("x", [2, 3])
if mg.mean(x) > 0:
    x = -x

# MG-PROGRAM-009
x = static.data("x", [2, 3])
y = static.nn.cond(mg.mean(x) > 0, lambda: x, lambda: (x, -x))

# MG-PROGRAM-010
y = nn.Linear(3, 1)(static.data("x", [2, 3]))
mg.optimizer.SGD(0.1).minimize(y)

# MG-PROGRAM-011
loss = mg.mean(nn.Linear(3, 1)(static.data("x", [2, 3])))
mg.optimizer.SGD(0.1).minimize(loss)
mg.optimizer.Adam(0.1).minimize(loss)

# MG-PROGRAM-012
program = parse("program p\ndata x: f32[2,3]\nforward\n  y = tan(x)\n")

# MG-PROGRAM-013
x = static.data("x", [2, 3])
y = static.default_main_program().global_block().create_var("y", [2, 3])
exe = static.Executor()
static.py_func(lambda value: exe.run(static.Program(), scope=static.Scope()), x, y)
exe.run(feed={"x": np.ones((2, 3), "float32")}, fetch_list=[y])

# MG-VERIFY-001
y = mg.tanh(static.data("x", [2, 3]))
graph = to_graph(static.default_main_program())
graph.ops[0].inputs["X"] = []  # what a wrong pass might do
verify(graph, "my_pass")

# MG-VERIFY-002
y = mg.tanh(static.data("x", [2, 3]))
before = static.default_main_program()
after = parse(str(before).replace("tanh(", "exp("))  # what a wrong pass might do
validate(before, after, "my_pass", fetched=[y.name])
