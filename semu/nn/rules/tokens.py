"""Along a stream of tokens: a token before every sequence, tokens dropped, chosen, pooled; convolutions over time.

Each is one kernel each way. Rows that sequence parallelism moves to another rank are few and counted as memory traffic
only, as in ``scatter_tokens``. Under tensor parallelism all ranks do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semu.errors import GraphError
from semu.graph.dim import Dim
from semu.graph.operator import OpKind, Phase
from semu.nn.module import Parameter
from semu.nn.rules.casts import cast_weights, for_products
from semu.nn.rules.few_channels import gather_passes
from semu.nn.rules.views import copy_like
from semu.nn.rules.weight_gradients import accumulate_weight_gradient, reduce_rows
from semu.nn.streams import Change, changed
from semu.nn.trace.eager import BIAS, LAYOUT, LAYOUT_WEIGHT, eager_moves
from semu.nn.trace.parameter_use import ParameterUse
from semu.nn.trace.tensor import Sequences, Tensor


def prepend_token(x: Tensor, token: Parameter) -> Tensor:
    """A learned token before every sequence: [tokens, h] -> [tokens + sequences, h].

    Args:
        x: one stream. token: [1, h] (a class token, 2010.11929 §3.1).
    Saves nothing. Backward: a copy without those rows, and their sum into the token's gradient.
    """
    use = _row(x, token)
    packing = changed(x, Change.longer(1))
    y = _rows(x, [x, use], packing, "prepend_token", x.size_bytes)

    def _backward(grad: Tensor) -> list[Tensor | None]:
        _sum_rows(grad, use, packing.count)
        return [_like(x, grad, "prepend_token_bw", x.size_bytes) if x.requires_grad else None]

    return x.trace.recorded([x], y, _backward)


def repeat_token(like: Tensor, token: Parameter) -> Tensor:
    """A learned token for every sequence of ``like`` [tokens, h]: [sequences, h], e.g. the query of a pooling head.

    Backward: the sum of the rows into the token's gradient.
    """
    use = _row(like, token)
    packing = changed(like, Change.to(1))
    y = _rows(like, [use], packing, "repeat_token", 0)

    def _backward(grad: Tensor) -> list[Tensor | None]:
        _sum_rows(grad, use, packing.count)
        return []

    return like.trace.recorded([], y, _backward)


def drop_tokens(x: Tensor, count: int = 1) -> Tensor:
    """The first ``count`` tokens of every sequence left out. Backward: their gradient is zero."""
    return _chosen(x, changed(x, Change.longer(-count)), "drop_tokens")


def first_tokens(x: Tensor) -> Tensor:
    """The first token of every sequence: [tokens, h] -> [sequences, h]. Backward: zeros for all others."""
    return _chosen(x, changed(x, Change.to(1)), "first_tokens")


def select_tokens(x: Tensor, selected: Sequences) -> Tensor:
    """Some tokens of every sequence: [tokens, h] -> [selected.tokens, h], e.g. all but the padding."""
    return _chosen(x, selected, "select_tokens")


def rename_tokens(x: Tensor, packing: Sequences) -> Tensor:
    """The tokens as those of another stream with equal sequences; a view, free."""
    shape = (packing.tokens, *x.shape[1:])
    y = replace(x.trace.view(x, shape, x.shards), sequences=packing)

    def _backward(grad: Tensor) -> list[Tensor | None]:
        return [replace(x.trace.view(grad, x.shape, x.shards), sequences=x.sequences)]

    return x.trace.recorded([x], y, _backward)


def pool_tokens(x: Tensor, pooled: Sequences) -> Tensor:
    """Means of groups of tokens: [tokens, h] -> [pooled.tokens, h] (average pooling).

    Saves nothing. Backward: each gradient goes to all of its group.
    """
    y = _rows(x, [x], pooled, "pool_tokens", x.size_bytes)
    return x.trace.recorded([x], y, lambda grad: [_like(x, grad, "pool_tokens_bw", grad.size_bytes)])


def repeat_tokens(x: Tensor, repeated: Sequences) -> Tensor:
    """Every token several times: [tokens, h] -> [repeated.tokens, h] (nearest-neighbour upsampling).

    Saves nothing. Backward: the sum over each group.
    """
    y = _rows(x, [x], repeated, "repeat_tokens", x.size_bytes)
    return x.trace.recorded([x], y, lambda grad: [_like(x, grad, "repeat_tokens_bw", grad.size_bytes)])


def convolve_tokens(x: Tensor, weight: Parameter, bias: Parameter | None, stride: int = 1) -> Tensor:
    """A convolution along every sequence, padded to ceil(length / stride) tokens (cuDNN's implicit matrix product).

    Args:
        x: [tokens, in]. weight: [out, in x kernel]. bias: [out] or None. stride: tokens that become one.
    Returns:
        [tokens / stride, out].
    FLOP:
        2 x tokens of the result x in x kernel x out, three times that with both gradients. The input is read once.
        Less than 8 channels take longer (``semu.nn.rules.few_channels``).
    Saves its input. With channels first (``TraceOptions.channels_first``) every product of more than one tap is between
    copies of both tensors and the weight (``semu.nn.trace.eager``).
    Raises:
        GraphError: features that do not fit the weight, or that are split.
    """
    trace, features = x.trace, x.shape[-1]
    if not isinstance(features, int) or weight.shape[1] % features or x.shards[-1] != 1:
        raise GraphError(
            "the input does not fit the weight",
            where=trace.where,
            expected=f"[tokens, a divisor of {weight.shape[1]}], whole",
            got=x.shape,
        )
    x = for_products(x)
    w = trace.parameter(weight)
    b = trace.parameter(bias) if bias is not None else None
    cast_weights(x, [w] if b is None else [w, b])
    n, k = weight.shape
    size = trace.options.tensor_dtype.size_bytes
    packing = changed(x, Change.shorter(stride)) if stride > 1 else x.sequences
    tokens = packing.tokens if packing is not None else x.shape[0]
    like = replace(x, shape=(tokens, n), dtype=trace.options.tensor_dtype, sequences=packing)
    m = like.local_shape[0]
    y = trace.emit(
        OpKind.MATMUL,
        [x, w] if b is None else [x, w, b],
        like=like,
        flop=2 * m * n * k,
        mem_bytes=x.size_bytes + size * (n * k + m * n),
        key=(m, n, k),
        name="convolution",
    )
    copied = w if k > features else None
    gather_passes(y, m, n, k, features)
    _copy_layouts([x, y], copied, "layout")
    if b is not None:
        eager_moves(y, BIAS, "bias")

    def _backward(grad: Tensor) -> list[Tensor | None]:
        grad_x = None
        if x.requires_grad:
            _copy_layouts([grad, x], copied, "layout_bw")
            grad_x = trace.emit(
                OpKind.MATMUL,
                [grad, w],
                like=x,
                dtype=trace.options.tensor_dtype,
                flop=2 * m * n * k,
                mem_bytes=grad.size_bytes + size * n * k + x.size_bytes,
                key=(m, k, n),
                phase=Phase.INPUT_GRADIENT,
                name="grad_bw",
            )
        if w.gradient is not None:
            _copy_layouts([grad, x], copied, "layout_bw")
        accumulate_weight_gradient(grad, [grad, x], w, b, (m, n, k), grad.size_bytes + x.size_bytes)
        return [grad_x]

    return trace.recorded([x], y, _backward)


def between_layouts(x: Tensor) -> Tensor:
    """Channels to tokens or back: a copy each way where the model keeps channels first, else nothing."""
    if not x.trace.options.channels_first:
        return x

    def _copy(source: Tensor, name: str) -> Tensor:
        return copy_like(source, [source], LAYOUT * source.size_bytes, name)

    return x.trace.recorded([x], _copy(x, "layout"), lambda grad: [_copy(grad, "layout_bw")])


def _copy_layouts(tensors: Sequence[Tensor], weight: ParameterUse | None, name: str) -> None:
    """Append the copies of a product's operands between channels first and last, where the model keeps them first.

    Args:
        tensors: of the product. weight: of more than one tap; None: one tap, whose layouts are alike for a product.
    """
    trace = tensors[0].trace
    if weight is None or not trace.options.channels_first:
        return
    for x in tensors:
        trace.emit(OpKind.COPY, [x], mem_bytes=LAYOUT * x.size_bytes, key=(x.numel,), name=f"{name}_passes")
    moved = LAYOUT_WEIGHT * weight.numel * trace.options.tensor_dtype.size_bytes
    trace.emit(OpKind.COPY, [tensors[-1], weight], mem_bytes=moved, key=(weight.numel,), name=f"{name}_passes")


def _row(x: Tensor, token: Parameter) -> ParameterUse:
    """The use of a parameter that is one token, as wide as the tokens of ``x``."""
    if tuple(token.shape) != (1, x.shape[-1]):
        raise GraphError("the token does not fit", where=x.trace.where, expected=f"[1, {x.shape[-1]}]", got=token.shape)
    return x.trace.parameter(token)


def _packed(x: Tensor, packing: Sequences) -> Tensor:
    """What the tokens of a packing look like, as wide and as split as ``x``."""
    return replace(x, shape=(packing.tokens, *x.shape[1:]), sequences=packing)


def _rows(x: Tensor, inputs: Sequence[Tensor | ParameterUse], packing: Sequences, name: str, read_bytes: Dim) -> Tensor:
    """Append a kernel that writes the tokens of ``packing``."""
    like = _packed(x, packing)
    return copy_like(like, inputs, read_bytes + like.size_bytes, name)


def _like(x: Tensor, grad: Tensor, name: str, read_bytes: Dim) -> Tensor:
    """Append a kernel that makes the gradient of ``x`` from that of the result."""
    return copy_like(x, [grad], read_bytes + x.size_bytes, name)


def _chosen(x: Tensor, packing: Sequences, name: str) -> Tensor:
    """Rows of ``x`` that make up ``packing``: read and written once; backward: zeros, and those rows."""
    y = _rows(x, [x], packing, name, _packed(x, packing).size_bytes)
    return x.trace.recorded([x], y, lambda grad: [_like(x, grad, f"{name}_bw", grad.size_bytes)])


def _sum_rows(grad: Tensor, use: ParameterUse, count: Dim) -> None:
    """Append the sum of ``count`` rows into a token's gradient, where it trains."""
    if use.gradient is not None:
        width = use.numel
        size = grad.trace.options.grad_dtype.size_bytes
        reduce_rows(grad, [use], count * width * grad.dtype.size_bytes + 2 * size * width, "token_bw")
