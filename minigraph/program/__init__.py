"""What the user builds: a Program of Operators over Variables, and what writes and reads it."""

from .program import (
    GRAD_SUFFIX,
    ROLES,
    Block,
    Operator,
    Parameter,
    Program,
    Slots,
    Variable,
    as_seed,
    copy_var,
    default_main_program,
    default_startup_program,
    describe_call,
    name_scope,
    program_guard,
)

__all__ = [
    "GRAD_SUFFIX", "ROLES", "Block", "Operator", "Parameter", "Program", "Slots", "Variable", "as_seed", "copy_var",
    "default_main_program", "default_startup_program", "describe_call", "name_scope", "program_guard",
]  # fmt: skip
