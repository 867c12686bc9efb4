"""PaddleGraph: what `CompiledProgram._graph` is in Paddle, to be read: operators and variables as nodes.

Paddle's own tests of passes count nodes by name there. Passes work on minigraph/ir, not on this.
"""

from __future__ import annotations

from minigraph.program import Program


class PaddleNode:
    """An operator or a variable of a PaddleGraph; `inputs` and `outputs` are its neighbours."""

    def __init__(self, name: str, operator: bool) -> None:
        self._name, self._operator = name, operator
        self.inputs: list[PaddleNode] = []
        self.outputs: list[PaddleNode] = []

    def name(self) -> str:
        """The type of an operator, the name of a variable."""
        return self._name

    def is_op(self) -> bool:
        return self._operator

    def is_var(self) -> bool:
        return not self._operator

    def __repr__(self) -> str:
        return f"<{'operator' if self._operator else 'variable'} {self._name}>"


class PaddleGraph:
    """The operators of a Program in order, and its variables; one that is written again is another node."""

    def __init__(self, program: Program) -> None:
        self._nodes: list[PaddleNode] = []
        latest: dict[str, PaddleNode] = {}
        for op in program.ops:
            node = PaddleNode(op.type, operator=True)
            for name in dict.fromkeys(op.input_arg_names):
                variable = latest.get(name) or latest.setdefault(name, self._added(PaddleNode(name, operator=False)))
                node.inputs.append(variable)
                variable.outputs.append(node)
            self._added(node)
            for name in dict.fromkeys(op.output_arg_names):
                variable = latest[name] = self._added(PaddleNode(name, operator=False))
                node.outputs.append(variable)
                variable.inputs.append(node)

    def _added(self, node: PaddleNode) -> PaddleNode:
        self._nodes.append(node)
        return node

    def nodes(self) -> list[PaddleNode]:
        return list(self._nodes)

    def all_op_nodes(self) -> list[PaddleNode]:
        return [node for node in self._nodes if node.is_op()]

    def all_var_nodes(self) -> list[PaddleNode]:
        return [node for node in self._nodes if node.is_var()]
