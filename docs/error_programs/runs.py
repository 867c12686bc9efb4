"""Programs for the codes of files, feeds, fetches and runs."""

import json
from pathlib import Path

import numpy as np

import minigraph as mg
from minigraph import nn, static

main, startup = static.default_main_program(), static.default_startup_program()
exe = static.Executor()

# MG-FILE-001
state = mg.load("runs/net.pdparams")

# MG-FILE-002
Path("net.pdparams").write_text("weights")
state = mg.load("net.pdparams")

# MG-FILE-003
static.nn.fc(static.data("x", [2, 3]), 10)
exe.run(startup)
static.save(main, "net")
with static.program_guard(static.Program(), static.Program()), mg.base.unique_name.guard():
    static.nn.fc(static.data("x", [2, 3]), 12)
    static.load(static.default_main_program(), "net", exe)

# MG-FILE-004
static.nn.fc(static.data("x", [2, 3]), 10)
exe.run(startup)
static.save(main, "net")
manifest = json.loads(Path("net.manifest").read_text())
Path("net.manifest").write_text(json.dumps({**manifest, "minigraph_checkpoint": 99}))
static.load(main, "net", exe)

# MG-FEED-001
y = mg.tanh(static.data("x", [2, 3]))
exe.run(main, feed=np.ones((2, 3), "float32"), fetch_list=[y])

# MG-FEED-002
y = mg.tanh(static.data("x", [2, 3]))
exe.run(main, feed={}, fetch_list=[y])

# MG-FEED-003
y = mg.tanh(static.data("features", [2, 3]))
exe.run(main, feed={"feature": np.ones((2, 3), "float32")}, fetch_list=[y])

# MG-FEED-004
y = mg.tanh(static.data("x", [2, 3]))
exe.run(main, feed={"x": np.ones((2, 3))}, fetch_list=[y])

# MG-FEED-005
y = mg.tanh(static.data("x", [None, 3]))
exe.run(main, feed={"x": np.ones((2, 4), "float32")}, fetch_list=[y])

# MG-FEED-006
y = mg.tanh(static.data("x", [2, 3]))
z = mg.exp(y)
exe.run(main, feed={"x": np.ones((2, 3), "float32"), y: np.ones((2, 3), "float32")}, fetch_list=[z])

# MG-FETCH-001
y = mg.tanh(static.data("x", [2, 3]))
exe.run(main, feed={"x": np.ones((2, 3), "float32")}, fetch_list=[3])

# MG-FETCH-002
y = mg.tanh(static.data("x", [2, 3]), name="hidden")
exe.run(main, feed={"x": np.ones((2, 3), "float32")}, fetch_list=["hiden"])

# MG-SCOPE-001
y = static.nn.fc(static.data("x", [2, 3]), 10)
exe.run(main, feed={"x": np.ones((2, 3), "float32")}, fetch_list=[y])

# MG-SCOPE-002
y = static.nn.fc(static.data("x", [2, 3]), 10)
static.global_scope().write("fc_0.w_0", np.ones((3, 12), "float32"))
static.global_scope().write("fc_0.b_0", np.ones(10, "float32"))
exe.run(main, feed={"x": np.ones((2, 3), "float32")}, fetch_list=[y])

# MG-PLACE-001
static.Executor(mg.CUDAPlace(99))

# MG-PLACE-002
y = mg.tanh(static.data("x", [2, 3]))
kernels = static.CompiledProgram(main).kernels({"x": [2, 3]}, [y], place=mg.CPUPlace())

# MG-KERNEL-001
x = static.data("x", [2, 3])
y = main.current_block().create_var(name="y", shape=[2, 3], dtype="float32")
static.py_func(lambda x: None, x, y)
exe.run(main, feed={"x": np.ones((2, 3), "float32")}, fetch_list=[y])

# MG-KERNEL-002
rows = nn.functional.embedding(static.data("ids", [2], "int64"), static.data("table", [10, 4]))
exe.run(main, feed={"ids": np.array([3, 10]), "table": np.ones((10, 4), "float32")}, fetch_list=[rows])

# MG-KERNEL-003
n = static.data("n", [2], "int64")
exe.run(main, feed={"n": np.array([1, 0])}, fetch_list=[7 // n])

# MG-KERNEL-004
x = static.data("x", [2, 3])
static.nn.control_flow.Assert(mg.min(x) > 0, [x], name="positive")
exe.run(main, feed={"x": np.zeros((2, 3), "float32")})

# MG-KERNEL-005
y = mg.linalg.inv(static.data("x", [2, 2]))
exe.run(main, feed={"x": np.ones((2, 2), "float32")}, fetch_list=[y])

# MG-MEMORY-001
y = mg.tanh(mg.exp(mg.full([2**48, 3], 1.0)))
exe.run(main, fetch_list=[y])

# MG-NAN-001
y = mg.log(static.data("x", [2, 3]))
mg.set_flags({"FLAGS_check_nan_inf": 1})
exe.run(main, feed={"x": np.full((2, 3), -1, "float32")}, fetch_list=[y])
