"""How operations of torch on single numbers are written in C. A new one is a new line here."""

from __future__ import annotations

# name -> expression; {self}, {other}, … are arguments. Capitals are functions of math.h.
POINTWISE: dict[str, str] = {
    "add.Tensor": "{self} + {alpha}*{other}",
    "add.Scalar": "{self} + {alpha}*{other}",
    "sub.Tensor": "{self} - {alpha}*{other}",
    "sub.Scalar": "{self} - {alpha}*{other}",
    "rsub.Scalar": "{other} - {alpha}*{self}",
    "rsub.Tensor": "{other} - {alpha}*{self}",
    "mul.Tensor": "{self} * {other}",
    "mul.Scalar": "{self} * {other}",
    "div.Tensor": "{self} / {other}",
    "div.Scalar": "{self} / {other}",
    "addcmul": "{self} + {value}*({tensor1} * {tensor2})",
    "neg": "-{self}",
    "reciprocal": "1 / {self}",
    "square": "{self} * {self}",
    "sqrt": "SQRT({self})",
    "rsqrt": "1 / SQRT({self})",
    "exp": "EXP({self})",
    "log": "LOG({self})",
    "log1p": "LOG1P({self})",
    "expm1": "EXPM1({self})",
    "sin": "SIN({self})",
    "cos": "COS({self})",
    "erf": "ERF({self})",
    "tanh": "TANH({self})",
    "atanh": "ATANH({self})",
    "sigmoid": "sigmoid({self})",
    "softplus": "softplus({self}, {beta}, {threshold})",
    "logaddexp": "logaddexp({self}, {other})",
    "abs": "FABS({self})",
    "sign": "(real)(({self} > 0) - ({self} < 0))",
    "sgn": "(real)(({self} > 0) - ({self} < 0))",
    "relu": "({self} > 0 ? {self} : 0)",
    "maximum": "({self} > {other} ? {self} : {other})",
    "minimum": "({self} < {other} ? {self} : {other})",
    "clamp_min": "({self} < {min} ? {min} : {self})",
    "clamp_max": "({self} > {max} ? {max} : {self})",
    "pow.Tensor_Scalar": "POW({self}, {exponent})",
    "where.self": "({condition} ? {self} : {other})",
    "masked_fill.Scalar": "({mask} ? {value} : {self})",
    "masked_fill.Tensor": "({mask} ? {value} : {self})",
    "logical_not": "!{self}",
    "bitwise_not": "!{self}",
    "logical_and": "({self} && {other})",
    "bitwise_and.Tensor": "({self} && {other})",
    "logical_or": "({self} || {other})",
    "bitwise_or.Tensor": "({self} || {other})",
    **{
        f"{name}.{kind}": f"({{self}} {sign} {{other}})"
        for name, sign in {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}.items()
        for kind in ("Tensor", "Scalar")
    },
    "sigmoid_backward": "{grad_output} * (1 - {output}) * {output}",
    "tanh_backward": "{grad_output} * (1 - {output}*{output})",
    "softplus_backward": "{grad_output} * ({self} * {beta} > {threshold} ? 1 : sigmoid({self} * {beta}))",
    "threshold_backward": "({self} > {threshold} ? {grad_output} : 0)",
    "clone": "{self}",
    "_to_copy": "{self}",
    "fill.Scalar": "{value}",
    "zero": "0",
    "copy": "{src}",
    "zeros": "0",
    "new_zeros": "0",
    "zeros_like": "0",
    "ones": "1",
    "new_ones": "1",
    "ones_like": "1",
    "full": "{fill_value}",
    "new_full": "{fill_value}",
    "full_like": "{fill_value}",
    "scalar_tensor": "{s}",
}
SMALL_POWERS = {1: "{0}", 2: "{0} * {0}", 3: "{0} * {0} * {0}", 0.5: "SQRT({0})", -1: "1 / {0}", -0.5: "1 / SQRT({0})"}

# written by methods of `Printer`
WHOLE = {
    *("mm", "addmm", "bmm", "baddbmm", "mv", "dot", "cat", "stack", "sum.dim_IntList", "sum", "mean.dim", "amax"),
    *("_softmax", "_log_softmax", "native_layer_norm", "argmax", "scatter.value", "eye", "var.correction"),
    *("constant_pad_nd", "slice_backward", "repeat_interleave.self_int", "index.Tensor"),
}


def plain_name(name: str) -> str:
    """The name of an operation that works in place or on a given result: ``add_.Tensor`` is ``add.Tensor``."""
    base, dot, overload = name.partition(".")
    if overload == "out":
        base, dot, overload = base, ".", "Tensor"
        return base + dot + overload if f"{base}.Tensor" in POINTWISE else base
    return base.removesuffix("_") + dot + overload


def known(name: str) -> bool:
    """Whether the printer knows an operation on arrays."""
    return plain_name(name) in POINTWISE or plain_name(name) in WHOLE
