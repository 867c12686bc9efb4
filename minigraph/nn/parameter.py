"""Parameters: made in the main program, initialised in the startup program."""

from __future__ import annotations

from typing import Any

from minigraph.errors import MinigraphError, ProgramError, call_site, require
from minigraph.errors.kinds import NAME, UNKNOWN_SIZE
from minigraph.program import Parameter, default_main_program, default_startup_program, unique_name
from minigraph.program.builder import Builder
from minigraph.program.default_dtype import default_dtype
from minigraph.types import TensorType, tensor_type

from .initializer import Constant, GlobalInitializers, Initializer, XavierUniform
from .param_attr import ParamAttr
from .weight_norm import Length, WeightNormParamAttr, length


def create_parameter(
    owner: str, shape: Any, dtype: Any = None, attr: Any = None, is_bias: bool = False,
    default_initializer: Initializer | None = None,
) -> Parameter | None:  # fmt: skip
    """A Parameter called `<owner>.w_<n>` (`.b_<n>` for a bias) or what `attr` says; None for attr=False.

    A WeightNormParamAttr gives the weight as a Variable, made of two parameters.
    Without an initializer weights are XavierUniform, biases 0. A name that exists already with the
    same type is shared, with another type it is an error.
    """
    attr = ParamAttr.of(attr)
    if attr is None:
        return None
    if isinstance(attr, WeightNormParamAttr):
        return _weight_normed(owner, shape, dtype, attr, is_bias, default_initializer)
    everywhere = GlobalInitializers.bias if is_bias else GlobalInitializers.weight
    usual = default_initializer or (Constant(0.0) if is_bias else XavierUniform())
    initializer = attr.initializer or everywhere or usual
    try:
        type = tensor_type(shape, dtype if dtype is not None else default_dtype())
        require(type.is_static, f"every size of a parameter must be known, got {type}", UNKNOWN_SIZE)
    except MinigraphError as error:
        raise error.at(f"parameter of {owner}", call_site()) from None
    name = attr.name or unique_name.generate(f"{owner}.{'b' if is_bias else 'w'}")
    block = default_main_program().global_block()
    existing = block.vars.get(name)
    if existing is not None:
        _check_shared(existing, type)
        return existing  # pyright: ignore[reportReturnType]
    _initialise(name, type, initializer)
    return block.create_parameter(
        name, type.shape, type.dtype, trainable=attr.trainable, learning_rate=attr.learning_rate,
        regularizer=attr.regularizer, need_clip=attr.need_clip,
    )  # fmt: skip


def _initialise(name: str, type: TensorType, initializer: Initializer) -> None:
    """Fill the variable in the startup program, unless another program's parameter of this name does."""
    block = default_startup_program().global_block()
    existing = block.vars.get(name)
    if existing is not None:
        require(
            existing.type == type, f"parameter {name} is {existing.type} in the startup program, {type} is asked for",
            ProgramError,
        )  # fmt: skip
        return
    variable = block.create_var(name, type=type, persistable=True)
    try:
        initializer(variable, block)
    except Exception as error:
        del block.vars[name]  # or a second attempt would take it for initialised
        if isinstance(error, MinigraphError):
            error.at(f"initializer of {name}", call_site())
        raise


def _weight_normed(
    owner: str, shape: Any, dtype: Any, attr: WeightNormParamAttr, is_bias: bool, default: Initializer | None
) -> Any:
    """g * v / |v| of two new parameters, `<name>_g` and `<name>_v`; g begins as |v|."""
    name = attr.name or unique_name.generate(f"{owner}.{'b' if is_bias else 'w'}")
    v = create_parameter(owner, shape, dtype, attr.plain(f"{name}_v", attr.initializer), is_bias, default)
    assert v is not None
    axes = attr.summed(v.ndim)
    sizes = [1 if i in axes else size for i, size in enumerate(v.shape)]
    g = create_parameter(owner, sizes, v.dtype, attr.plain(f"{name}_g", Length(v.name, axes)))
    build = Builder(v.block)
    return build.elementwise_mul(v, build.elementwise_div(g, length(build, v, axes)), name=name)


def _check_shared(existing: Any, type: TensorType) -> None:
    if not isinstance(existing, Parameter):
        raise NAME(f"variable {existing} exists already and is no parameter", site=call_site())
    if existing.type != type:
        raise NAME(
            f"parameter {existing} exists already, {type} is asked for under the same name", site=call_site(),
            hint="give one of them another ParamAttr(name=...)",
        )  # fmt: skip
