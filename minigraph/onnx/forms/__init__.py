"""Every operator that ONNX can say, in its standard operators: one file for each family, as in minigraph/ops.

    SAME["tanh"] = "Tanh"                 one standard operator, operand by operand

    @form
    def silu(g, X):                       called as the reference is; `g` writes nodes
        return X * g.Sigmoid(X)

A form may return outputs that nobody wants; the nodes that only they need are dropped. 16-bit floats are storage: a
form is called with float32 instead, and what it returns is rounded. `exact` ones only move values and take them as
they are.
"""

from . import attention, elementwise, fused, integers, loss, movement, products, reductions, rows

__all__ = ["attention", "elementwise", "fused", "integers", "loss", "movement", "products", "reductions", "rows"]
