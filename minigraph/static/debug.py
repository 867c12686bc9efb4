"""`static.Print`: see a value while a program runs."""

from __future__ import annotations

from minigraph.program import Variable
from minigraph.program.builder import builder_of
from minigraph.tensor.arguments import output_prefix, variable


def Print(
    input: Variable, first_n: int = -1, message: str | None = None, summarize: int = 20,
    print_tensor_name: bool = True, print_tensor_type: bool = True, print_tensor_shape: bool = True,
    print_tensor_layout: bool = True, print_tensor_lod: bool = True, print_phase: str = "both",
) -> Variable:  # fmt: skip
    """`input`, which is written to standard output when the program runs.

    first_n      only in the first n runs in a scope; -1 in all
    message      stands in front
    summarize    how many elements are shown, from the front; -1 all
    print_phase  forward, backward (its gradient) or both
    Layout and LoD are Paddle's and say nothing here.
    """
    x = variable(input, "Print", "input")
    return builder_of(x).print(
        x, first_n=first_n, message=message or "", summarize=summarize, print_phase=print_phase,
        tensor_name=x.name if print_tensor_name else "", print_type=print_tensor_type, print_shape=print_tensor_shape,
        name=output_prefix("print", None),
    )  # fmt: skip
