"""Layers that normalise."""

from __future__ import annotations

import math
from typing import Any

from minigraph.errors import call_site, require
from minigraph.errors.kinds import NOT_OFFERED, RANK
from minigraph.program import Parameter, Variable
from minigraph.program.builder import whole
from minigraph.types import FLOATS, float32, float64, normalize_shape

from . import functional as F
from .activated import activated, check_activation
from .functional.spectral_norm import directions, spectrally_normed
from .initializer import Constant
from .layer import Layer
from .param_attr import ParamAttr


class LayerNorm(Layer):
    """Normalisation over the last axes, of sizes `normalized_shape`, with a weight (1 at first) and bias (0)."""

    @whole
    def __init__(
        self, normalized_shape: Any, epsilon: float = 1e-5, weight_attr: Any = None, bias_attr: Any = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape, self.epsilon, self.name = normalize_shape(normalized_shape), epsilon, name
        size = [math.prod(self.normalized_shape)]
        self.weight = self.create_parameter(size, attr=weight_attr, default_initializer=Constant(1.0))
        self.bias = self.create_parameter(size, attr=bias_attr, is_bias=True)

    def forward(self, input: Variable) -> Variable:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.epsilon, name=self.name)

    def extra_repr(self) -> str:
        return f"normalized_shape={list(self.normalized_shape)}, epsilon={self.epsilon}"


class _OfChannels(Layer):
    """A weight (1 at first) and a bias (0) for each channel; `ranks` are those of inputs, none: all."""

    ranks: tuple[int, ...] = ()

    @whole
    def __init__(self, channels: int, epsilon: float, weight_attr: Any, bias_attr: Any, data_format: str,
                 name: str | None, dtype: Any = None) -> None:  # fmt: skip
        super().__init__(dtype=dtype)
        self.channels, self.epsilon, self.data_format, self.name = channels, epsilon, data_format, name
        if self._dtype in FLOATS and self._dtype not in (float32, float64):
            self._dtype = float32
        self.weight = self.create_parameter([channels], attr=weight_attr, default_initializer=Constant(1.0))
        self.bias = self.create_parameter([channels], attr=bias_attr, is_bias=True)

    def check_rank(self, x: Variable) -> None:
        if self.ranks and x.ndim not in self.ranks:
            ranks = " or ".join(map(str, self.ranks))
            raise RANK(f"x must have rank {ranks}, is {x}", call=type(self).__name__, site=call_site())

    def extra_repr(self) -> str:
        return f"{self.channels}, epsilon={self.epsilon}"


class BatchNorm1D(_OfChannels):
    """functional.batch_norm of [N, C] or [N, C, L], with running averages that begin at 0 and 1.

    They are persistable, not trained, and stand in state_dict() as `_mean` and `_variance`.
    """

    ranks = (2, 3)
    _mean: Parameter
    _variance: Parameter

    @whole
    def __init__(
        self, num_features: int, momentum: float = 0.9, epsilon: float = 1e-5, weight_attr: Any = None,
        bias_attr: Any = None, data_format: str = "NCL", use_global_stats: bool | None = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(num_features, epsilon, weight_attr, bias_attr, data_format, name)
        self.momentum, self.use_global_stats = momentum, use_global_stats
        self.keep_averages()

    def keep_averages(self, mean_name: str | None = None, variance_name: str | None = None) -> None:
        """Create the running averages."""
        for attribute, name, value in (("_mean", mean_name, 0.0), ("_variance", variance_name, 1.0)):
            attr = ParamAttr(name=name, initializer=Constant(value), trainable=False)
            setattr(self, attribute, self.create_parameter([self.channels], attr=attr))

    def forward(self, x: Variable) -> Variable:
        self.check_rank(x)
        return F.batch_norm(
            x, self._mean, self._variance, self.weight, self.bias, self.training, self.momentum, self.epsilon,
            self.data_format, self.use_global_stats, name=self.name,
        )  # fmt: skip


class BatchNorm2D(BatchNorm1D):
    """BatchNorm1D of [N, C, H, W], with data_format="NHWC" of [N, H, W, C]."""

    ranks = (4,)

    def __init__(
        self, num_features: int, momentum: float = 0.9, epsilon: float = 1e-5, weight_attr: Any = None,
        bias_attr: Any = None, data_format: str = "NCHW", use_global_stats: bool | None = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(num_features, momentum, epsilon, weight_attr, bias_attr, data_format, use_global_stats, name)


class BatchNorm3D(BatchNorm1D):
    """BatchNorm1D of [N, C, D, H, W], with data_format="NDHWC" of [N, D, H, W, C]."""

    ranks = (5,)

    def __init__(
        self, num_features: int, momentum: float = 0.9, epsilon: float = 1e-5, weight_attr: Any = None,
        bias_attr: Any = None, data_format: str = "NCDHW", use_global_stats: bool | None = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(num_features, momentum, epsilon, weight_attr, bias_attr, data_format, use_global_stats, name)


class BatchNorm(BatchNorm1D):
    """The older form of BatchNorm1D, of any rank, with an activation `act` behind it.

    is_test             as eval() sets it
    moving_mean_name, moving_variance_name  names of the running averages
    in_place, do_model_average_for_mean_and_var and trainable_statistics=False are accepted and have no effect.
    """

    ranks = ()

    @whole
    def __init__(
        self, num_channels: int, act: str | None = None, is_test: bool = False, momentum: float = 0.9,
        epsilon: float = 1e-5, param_attr: Any = None, bias_attr: Any = None, dtype: Any = "float32",
        data_layout: str = "NCHW", in_place: bool = False, moving_mean_name: str | None = None,
        moving_variance_name: str | None = None, do_model_average_for_mean_and_var: bool = True,
        use_global_stats: bool = False, trainable_statistics: bool = False,
    ) -> None:  # fmt: skip
        require(not trainable_statistics, "the averages of nn.BatchNorm are not trained", NOT_OFFERED)
        check_activation("nn.BatchNorm", act)
        _OfChannels.__init__(self, num_channels, epsilon, param_attr, bias_attr, data_layout, None, dtype)
        self.momentum, self.use_global_stats, self.act = momentum, use_global_stats or None, act
        self.training = not is_test
        self.keep_averages(moving_mean_name, moving_variance_name)

    def forward(self, x: Variable) -> Variable:
        return activated(super().forward(x), self.act, self.full_name())


class SpectralNorm(Layer):
    """`layer(weight)` is the weight divided by its largest singular value, as static.nn.spectral_norm has it.

    weight_shape  sizes of the weight;  dim: its axis that is the matrix's rows, 0 or 1
    power_iters   steps of the power iteration in each call;  eps: added to lengths
    The vectors of the iteration, weight_u and weight_v, begin at random and stay as they are.
    """

    @whole
    def __init__(
        self, weight_shape: Any, dim: int = 0, power_iters: int = 1, eps: float = 1e-12, dtype: Any = "float32"
    ) -> None:
        super().__init__(dtype=dtype)
        self.weight_shape, self.dim = normalize_shape(weight_shape), dim
        self.power_iters, self.eps = power_iters, eps
        self.weight_u, self.weight_v = directions(self.weight_shape, dim, power_iters, self._dtype, self.full_name())

    def forward(self, x: Variable) -> Variable:
        return spectrally_normed(x, self.dim, self.power_iters, self.eps, (self.weight_u, self.weight_v),
                                 self.full_name())  # fmt: skip

    def extra_repr(self) -> str:
        return f"weight_shape={list(self.weight_shape)}, dim={self.dim}, power_iters={self.power_iters}"


class GroupNorm(_OfChannels):
    """(x - mean) / sqrt(variance + epsilon) of each sample over groups of channels and all axes behind them."""

    def __init__(
        self, num_groups: int, num_channels: int, epsilon: float = 1e-5, weight_attr: Any = None,
        bias_attr: Any = None, data_format: str = "NCHW", name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(num_channels, epsilon, weight_attr, bias_attr, data_format, name)
        self.num_groups = num_groups

    def forward(self, input: Variable) -> Variable:
        return F.norm.group_norm(
            input, self.num_groups, self.weight, self.bias, self.epsilon, self.data_format, name=self.name
        )

    def extra_repr(self) -> str:
        return f"num_groups={self.num_groups}, num_channels={self.channels}, epsilon={self.epsilon}"


class InstanceNorm1D(_OfChannels):
    """(x - mean) / sqrt(variance + epsilon) of each sample and channel of [N, C, L]; momentum has no effect."""

    ranks = (3,)

    def __init__(
        self, num_features: int, epsilon: float = 1e-5, momentum: float = 0.9, weight_attr: Any = None,
        bias_attr: Any = None, data_format: str = "NCL", name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(num_features, epsilon, weight_attr, bias_attr, data_format, name)
        self.momentum = momentum

    def forward(self, input: Variable) -> Variable:
        self.check_rank(input)
        return F.instance_norm(
            input, weight=self.weight, bias=self.bias, eps=self.epsilon, data_format=self.data_format, name=self.name
        )


class InstanceNorm2D(InstanceNorm1D):
    """InstanceNorm1D of [N, C, H, W]."""

    ranks = (4,)

    def __init__(
        self, num_features: int, epsilon: float = 1e-5, momentum: float = 0.9, weight_attr: Any = None,
        bias_attr: Any = None, data_format: str = "NCHW", name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(num_features, epsilon, momentum, weight_attr, bias_attr, data_format, name)


class InstanceNorm3D(InstanceNorm1D):
    """InstanceNorm1D of [N, C, D, H, W]."""

    ranks = (5,)

    def __init__(
        self, num_features: int, epsilon: float = 1e-5, momentum: float = 0.9, weight_attr: Any = None,
        bias_attr: Any = None, data_format: str = "NCDHW", name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(num_features, epsilon, momentum, weight_attr, bias_attr, data_format, name)


__all__ = [
    "BatchNorm", "BatchNorm1D", "BatchNorm2D", "BatchNorm3D", "GroupNorm", "InstanceNorm1D", "InstanceNorm2D",
    "InstanceNorm3D", "LayerNorm", "SpectralNorm",
]  # fmt: skip
