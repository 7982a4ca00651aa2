"""What is remembered between calls of ``simulate``: compiled blocks, and stages joined of them.

Everything here is structural: nothing of a model is kept but the shapes of its parameters, so that a block compiled for
one model serves every other with a block of equal structure, whatever its path.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, cast

from semu import memo
from semu.compile.combined.hidden_exchanges import HiddenExchanges
from semu.compile.combined.layers import Hiding, hidden_template, layer_parts
from semu.compile.join import build_stages
from semu.compile.stage import StageProgram
from semu.compile.template import Template, TemplateLibrary, compile_template, stream_names
from semu.compile.zero_exchange import ExchangeCosts, ExchangePlan, HostCopyCosts
from semu.nn.module import Parameter
from semu.nn.trace.block import CarrySpec, TracedBlock
from semu.nn.trace.options import TraceOptions
from semu.records import dataclass

_serial = itertools.count()


@dataclass(frozen=True)
class ParameterSlot:
    """A parameter of a block as one rank holds it.

    Attributes:
        number: which of the block's parameters, in the order of ``named_parameters``. path: below the block.
        elements: local elements. is_sharded: split over the tensor-parallel group.
        writers: positions, in the block's backward half, of the operators that write its gradient; none: frozen.
        is_fp8: the weight of a linear that runs in fp8.
        is_expert: of routed experts, whose replicas are the ranks of the expert-data-parallel group.
        shape: of the local part. parts, is_packed: as in ``ParameterUse``.
    """

    number: int
    path: str
    elements: int
    is_sharded: bool
    is_fp8: bool
    writers: tuple[int, ...]
    is_expert: bool
    shape: tuple[int, ...]
    parts: tuple[int, ...]
    is_packed: bool

    @property
    def writer(self) -> int:
        """Position of the operator that completes its gradient; -1: frozen."""
        return self.writers[-1] if self.writers else -1


@dataclass(frozen=True, eq=False)
class CompiledBlock:
    """A traced block without the model that it was traced from.

    Attributes:
        serial: different for every one in this process. template: its operators.
        output_specs: what the next block receives.
        output_gradients, input_gradients: which gradients arrive and leave.
        slots: its parameters.
    """

    serial: int
    template: Template
    output_specs: tuple[CarrySpec, ...]
    output_gradients: tuple[bool, ...]
    input_gradients: tuple[bool, ...]
    slots: tuple[ParameterSlot, ...]

    @classmethod
    def of(cls, traced: TracedBlock, parameters: Sequence[Parameter]) -> CompiledBlock:
        """Compile a traced block.

        Args:
            traced: the block. parameters: those of its module, in the order of ``named_parameters``.
        """
        number = {parameter: position for position, parameter in enumerate(parameters)}
        backward = traced.graph.operators[traced.num_forward :]
        return cls(
            serial=next(_serial),
            template=compile_template(
                traced.graph,
                traced.num_forward,
                inputs=traced.inputs,
                outputs=traced.outputs,
                output_gradients=traced.output_gradients,
                input_gradients=traced.input_gradients,
                groups=traced.groups,
            ),
            output_specs=traced.output_specs,
            output_gradients=tuple(tensor is not None for tensor in traced.output_gradients),
            input_gradients=tuple(tensor is not None for tensor in traced.input_gradients),
            slots=tuple(
                ParameterSlot(
                    number=number[use.parameter],
                    path=use.path,
                    elements=use.numel,
                    is_sharded=use.is_sharded,
                    writers=tuple(op.index - traced.num_forward for op in backward if use.gradient in op.outputs),
                    is_fp8=use.is_fp8,
                    is_expert=use.is_expert,
                    shape=use.shape,
                    parts=use.parts,
                    is_packed=use.is_packed,
                )
                for use in traced.parameters
            ),
        )


class AskedOptions:
    """Options that note which of them a trace reads. Of the plan of shards, keys hold what traces read.

    Attributes:
        options: what is read.
    """

    def __init__(self, options: TraceOptions) -> None:
        self.options, self._asked = options, dict[str, None]()

    def __getattr__(self, name: str) -> Any:
        own = getattr(TraceOptions, name, None)
        if isinstance(own, property):
            value = own.__get__(self)
        else:
            value = getattr(self.options, name)
            self._asked[name] = None
        self.__dict__[name] = value  # is not asked again
        return value

    @property
    def names(self) -> tuple[str, ...]:
        """What was read, sorted."""
        return tuple(sorted(self._asked.keys() - {"plan"}))


def block_like(key: Hashable, options: TraceOptions, make: Callable[[TraceOptions], CompiledBlock]) -> CompiledBlock:
    """A compiled block: what was made before under options with the same values of all that its trace reads, or new.

    A trace that reads the same as another goes the same way, so that options which it does not read cannot matter.
    No other table holds blocks: one that forgets later would hand out the block before beside a new one like it, and
    sums over blocks would depend, in their last bit, on what the process did before.

    Args:
        key: all that the block depends on but ``options``, and what it depends on of their plan of shards.
        make: traces and compiles it.
    """
    known = _ASKED.peek(key) or ()
    for names in known:
        block = BLOCKS.peek((key, names, tuple([getattr(options, name) for name in names])))
        if block is not None:
            return block
    asked = AskedOptions(options)
    block = make(cast("TraceOptions", asked))
    names = asked.names
    if names not in known:
        _ASKED.put(key, (*known, names))
    return BLOCKS.put((key, names, tuple([getattr(options, name) for name in names])), block)


class JoinedLibrary:
    """A library of templates and the stages joined of them.

    Args:
        blocks: compiled blocks in the order of the library's templates.
        exchanges: what collectives, and copies from the host, inside stages move; their templates follow.
        hides: layers of experts have their exchanges once more, as they hide behind another microbatch; None: they
            have not.
    """

    def __init__(
        self,
        blocks: Sequence[CompiledBlock],
        exchanges: Sequence[ExchangeCosts | HostCopyCosts] = (),
        *,
        hides: Hiding | None = None,
    ) -> None:
        templates = [item.template for item in blocks]
        parts = [None if hides is None else layer_parts(template, hides) for template in templates]
        layers = {number: own for number, own in enumerate(parts) if own is not None}
        first = len(templates) + len(exchanges)
        templates += [item.template() for item in exchanges]
        templates += [hidden_template(templates[number], own) for number, own in layers.items()]
        self.library = library = TemplateLibrary(templates)
        library.hidden = tuple(
            HiddenExchanges(own, library.row_offset[number], library.row_offset[first + turn])
            for turn, (number, own) in enumerate(layers.items())
        )
        self.streams = stream_names(self.library)

    def stages(
        self,
        numbers: tuple[int, ...],
        *,
        serial: bool,
        has_consumer: bool,
        borrowed: tuple[bool, ...],
        exchanges: ExchangePlan | None = None,
        produced: tuple[bool, ...] = (),
    ) -> tuple[StageProgram, StageProgram | None]:
        """Forward and backward stage of a chunk; arguments as ``build_stages``."""
        return _STAGES.get(
            self,
            (numbers, serial, has_consumer, borrowed, exchanges, produced),
            lambda: build_stages(
                self.library,
                numbers,
                self.streams,
                serial=serial,
                has_consumer=has_consumer,
                borrowed=borrowed,
                exchanges=exchanges,
                produced=produced,
            ),
        )


BLOCKS = memo.Table[CompiledBlock]("compiled blocks by all that is no option, names of options, and their values", 512)
_ASKED = memo.Table[tuple[tuple[str, ...], ...]]("options that traces have read, by all that is no option", 512)
LIBRARIES = memo.Table[JoinedLibrary]("libraries by serial numbers of their blocks, and exchanges", 16)
_STAGES = memo.ScopedTable[tuple[StageProgram, StageProgram | None]](
    "forward and backward stages of a library, by blocks and options", 256
)
