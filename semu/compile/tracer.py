"""``ModelTracer``: the blocks of a job's model, every distinct structure traced and compiled once per process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeAlias

from semu.compile.model_memo import state_of
from semu.compile.module_sharding import ModuleSetting, resharded, to_shards, to_whole, vocabulary_options
from semu.compile.structure import Structure, StructureReader
from semu.compile.template_cache import CompiledBlock, ParameterSlot, block_like
from semu.errors import ConfigError
from semu.hardware.attention_kernels import head_dims
from semu.hardware.kinds import DType
from semu.hardware.network import CommGroup
from semu.hardware.software import Software
from semu.job import Attention, Fp8Weights, Precision, Recompute, TrainingJob
from semu.job.context import context_plan
from semu.job.experts import expert_plan
from semu.nn.masked_kernel import Masking
from semu.nn.model import InputSpec
from semu.nn.module import Module, Parameter
from semu.nn.trace.block import CarrySpec, starts_from_data, trace_block
from semu.nn.trace.options import TraceOptions
from semu.nn.trace.sharding import ShardingStyle
from semu.parallel.context import Balance
from semu.parallel.mesh import Mesh
from semu.parallel.tensor import has_dtensor, megatron_plan
from semu.records import dataclass

OptionsKey: TypeAlias = tuple[tuple[Any, ...], tuple[Any, ...], bool]
"""As ``options_key`` makes it."""


@dataclass(frozen=True)
class HeldParameter(ParameterSlot):
    """A parameter of the model as one rank holds it; ``path`` is the dotted path in the model.

    Attributes:
        parameter: the model's. in_layer: it is part of a layer, from tensors to tensors.
    """

    parameter: Parameter
    in_layer: bool = True

    @property
    def is_matrix(self) -> bool:
        """A matrix of a layer, or several: neither a vector nor part of an embedding or of the head."""
        return self.in_layer and len(self.shape) >= 2 and "bias" not in self.parameter.name


@dataclass(frozen=True)
class Block:
    """A block of the model: where it is, which template it uses, what it holds.

    Attributes:
        is_layer: tensors to tensors: it neither starts from data nor ends in a loss, so it can be recomputed.
        is_streamed: its weights live on the host (``training.offload``).
    """

    path: str
    template: int
    parameters: tuple[HeldParameter, ...]
    is_layer: bool = True
    is_streamed: bool = False


@dataclass(frozen=True)
class TracedUnit:
    """Something to trace as one block: a block of the model, or several that are recomputed together.

    Attributes:
        path, body: where, what. is_recomputed: keep only its inputs.
    """

    path: str
    body: Module
    is_recomputed: bool


@dataclass(frozen=True)
class _Placed:
    """A block in its place: where, what, from what; blocks of equal ``key`` trace alike.

    Attributes:
        path, body: where, what. specs: what arrives. parameters: as ``body.named_parameters``.
        key: decides, with the gradients, what is traced. number: of the key, in this job.
        is_lasting: the key says so also in another call of ``simulate``. is_recomputed: as the unit.
        is_offloaded: what its forward pass saves lives on the host in between. options: it is traced so.
        is_streamed: its weights live on the host, which changes nothing about its trace.
    """

    path: str
    body: Module
    specs: tuple[CarrySpec, ...]
    parameters: tuple[Parameter, ...]
    key: tuple[Hashable, OptionsKey]
    number: int
    is_lasting: bool
    is_recomputed: bool
    is_offloaded: bool
    options: TraceOptions
    is_streamed: bool = False

    @property
    def is_data(self) -> bool:
        """Whether it starts from what the data loader gives as integers."""
        return bool(self.specs) and starts_from_data(self.specs[0].dtype)

    @property
    def key_but_options(self) -> Hashable:
        """All that is traced depends on but ``options``."""
        own, (_, of_plan, full_recompute) = self.key
        return own, of_plan, full_recompute and not self.is_data


def parameters_on_host(blocks: Iterable[Block]) -> frozenset[Parameter]:
    """The parameters that live on the host: of chosen layers, used by no other block.

    Args:
        blocks: of the whole model.
    """
    every = list(blocks)
    if not any(block.is_streamed for block in every):
        return frozenset()
    users = Counter(key for block in every for key in {held.parameter for held in block.parameters})
    return frozenset(
        held.parameter
        for block in every
        if block.is_streamed
        for held in block.parameters
        if users[held.parameter] == 1
    )


class ModelTracer:
    """Compiles blocks in order of data flow; equal structures with equal inputs are traced once.

    A second walk, against the data flow, finds for which outputs a gradient really arrives (none does for a carry that
    nobody after this block uses), and traces again where that differs.

    Args:
        job: what to trace. tower_ends: pipeline ranks on which towers that gather features end.
    Attributes:
        mesh, options: of the job, ``options`` of the module that is being traced. blocks: what its templates are made
            of, in order.
        is_lasting: all of them may be remembered after this call.
        spread_streams: module whose items are spread over groups of ranks -> streams that it reads.
    """

    def __init__(self, job: TrainingJob, tower_ends: Sequence[int] = ()) -> None:
        self.job = job
        self.mesh = Mesh(job.parallel, job.cluster)
        self.blocks: list[CompiledBlock] = []
        self._template: dict[int, int] = {}
        self._reader, self._state = StructureReader(), state_of(job.model)
        self._numbers: dict[object, int] = {}
        self._before: _Placed | None = None
        self._known: dict[tuple[int, tuple[bool, ...] | None], CompiledBlock] = {}
        training = job.training
        self.offload = training.offload_plan
        self.options = TraceOptions(
            plan=megatron_plan(job.model, job.parallel),
            tp_group=self.mesh.worst_tp_group,
            compute_dtype=training.precision.compute_dtype,
            tensor_dtype=training.precision.tensor_dtype,
            grad_dtype=training.grad_dtype,
            overlap_tp=job.overlaps_tensor_parallel,
            fused_attention=training.attention is Attention.FUSED,
            separate_softmax=training.software.kernels is Software.TORCH,
            head_dims=head_dims(job.attention_kernel),
            recompute=training.recompute_plan,
            cast_weights=job.fp8_weights is Fp8Weights.MICROBATCH,
            transpose_weights=job.gathers_fp8_weights,
            experts=expert_plan(job.model, job.parallel, training, self.mesh),
            cp_group=self.mesh.worst_cp_group,
            cp_kind=job.parallel.context_kind,
            cp_levels=self.mesh.worst_context_levels,
            cp_parts=self.mesh.worst_context_parts,
            replica_group=self.mesh.worst_replica_group if self._state.reads_replicas else CommGroup("replicas", 1, 1),
            keep_products=training.recompute_policy is not None,
            stop_early=job.stops_recomputation_early,
            cross_entropy=training.cross_entropy.value,
            fused_accumulation=job.fuses_accumulation,
            sums_gradients_twice=job.sums_gradients_twice,
            eager_modules=training.runs_unfused,
            eager_kernels=training.eager_kernels,
            channels_first=training.has_channels_first,
            convolves_patches=training.convolves_patches,
            bias_kernels=training.runs_unfused and training.software is Software.MEGATRON,
            autocast=training.autocast,
            casts_parameters=training.autocast is not None and not job.shards_are_masters,
            has_dtensor=has_dtensor(job.parallel, training.software),
            keeps_gathered=job.keeps_gathered_inputs,
            fp8_recipe=training.fp8_recipe,
            fp8_copies=job.fp8_copies,
            fp8_gates=training.fp8_gates,
            frozen_weights=training.frozen_weights,
            masking=_masking(job),
        )
        self._options_key = _both_keys(self.options)
        self._settings = {module.name: ModuleSetting.of(module.name, self.mesh) for module in job.model.modules}
        self._traced_as = {name: self._options_of(setting) for name, setting in self._settings.items()}
        self._vocabulary: tuple[TraceOptions, tuple[OptionsKey, OptionsKey]] | None = None
        if job.parallel.spreads_vocabulary:
            options = vocabulary_options(job, self.mesh, self.options)
            self._vocabulary = options, _both_keys(options)
        if job.parallel.towers_meet:
            group = self.mesh.worst_tower_group(tower_ends)
            options = replace(self.options, gang_group=group, gang_gathers=True)
            self._traced_as[job.model.modules[-1].name] = options, _both_keys(options)
        self.spread_streams: dict[str, list[str]] = {}
        self.silent: list[list[Block]] = []
        self._paths: dict[object, tuple[str, ...]] = {}
        self.is_lasting = True
        self._most_layers = 0

    def share(self, other: ModelTracer) -> None:
        """Number templates with another tracer's, in one list."""
        self.blocks, self._template = other.blocks, other._template

    def _options_of(self, setting: ModuleSetting) -> tuple[TraceOptions, tuple[OptionsKey, OptionsKey]]:
        """Options of a module, and their keys."""
        if setting.mesh is self.mesh:
            return self.options, self._options_key
        own = setting.options(self.job, self.options)
        return own, _both_keys(own)

    def trace_model(self, units: Sequence[Sequence[TracedUnit]] | None = None) -> list[list[Block]]:
        """The blocks of every modality module, in order.

        Args:
            units: what to trace, module by module; None: every block of the model, recomputed as the job says.
        """
        if units is None:
            again = self.job.training.recompute is Recompute.FULL
            units = [[TracedUnit(path, body, again) for path, body in m.blocks()] for m in self.job.model.modules]
        outputs: dict[str, tuple[CarrySpec, ...]] = {}
        placed: list[list[_Placed]] = []
        for module, own in zip(self.job.model.modules, units, strict=True):
            setting = self._settings[module.name]
            self.options, self._options_key = self._traced_as[module.name]
            specs = tuple(self._input_spec(spec, setting) for spec in module.inputs)
            for source in module.sources:
                given = outputs[source]
                specs += resharded(given, source, module.name, self._settings[source], setting)
            if setting.name:
                read = [spec.sequences.stream for spec in specs if spec.sequences is not None]
                self.spread_streams[module.name] = list(dict.fromkeys(read))
            group = []
            layers = 0
            for number, unit in enumerate(own):
                specs = self._between(number, len(own), specs)
                group.append(self._place(unit, specs))
                compiled = self._compile(group[-1], None)
                if _is_layer(group[-1], compiled):
                    chosen = self._chosen(unit, layers)
                    is_offloaded = self.offload.chooses(unit.path, layers)
                    if is_offloaded or chosen is not unit:
                        group[-1] = self._place(chosen, specs, is_offloaded=is_offloaded)
                    if self.offload.streams(unit.path, layers):
                        group[-1] = replace(group[-1], is_streamed=True)
                    layers += 1
                specs = compiled.output_specs
            outputs[module.name] = specs
            if module.name != "mtp":  # whose layers follow the others in Megatron-LM's count, and stay in fp8
                self._leave_in_bf16(group)
            placed.append(group)
        self._check_bf16_layers()
        found = self._walk_back(placed, {name: len(specs) for name, specs in outputs.items()})
        if self.job.parallel.segments == "replicated":
            self.silent = [[self._silent(place) for place in group] for group in placed]
        return found

    def _between(self, number: int, count: int, specs: tuple[CarrySpec, ...]) -> tuple[CarrySpec, ...]:
        """Choose the options of a module's block; what arrives at it, spread as these want it.

        Args:
            number, count: of the block, of the module's blocks. specs: what the block before returns.
        """
        if self._vocabulary is None or number not in (0, 1, count - 1):
            return specs
        if number == 1:
            self.options, self._options_key = self._traced_as[self.job.model.modules[0].name]
            return to_shards(specs, self.job.parallel, self.mesh)
        self.options, self._options_key = self._vocabulary
        return to_whole(specs, self.mesh) if number else specs

    def _leave_in_bf16(self, group: list[_Placed]) -> None:
        """Place a module's first and last layers again, without fp8, as ``training.bf16_first_layers`` says."""
        training = self.job.training
        first, last = training.bf16_first_layers or 0, training.bf16_last_layers or 0
        if not first + last or self.options.compute_dtype is not DType.FP8:
            return
        layers = [n for n, place in enumerate(group) if any(part.fp8_region for part in place.body.modules())]
        self._most_layers = max(self._most_layers, len(layers))
        self.options = replace(self.options, compute_dtype=self.options.tensor_dtype)
        self._options_key = _both_keys(self.options)
        for number in dict.fromkeys(layers[:first] + layers[len(layers) - min(last, len(layers)) :]):
            place = group[number]
            unit = TracedUnit(place.path, place.body, place.is_recomputed)
            again = self._place(unit, place.specs, is_offloaded=place.is_offloaded)
            group[number] = replace(again, is_streamed=place.is_streamed)

    def _check_bf16_layers(self) -> None:
        training = self.job.training
        for name in ("bf16_first_layers", "bf16_last_layers"):
            count = getattr(training, name) or 0
            if training.precision is Precision.FP8 and count > self._most_layers:
                raise ConfigError(
                    f"{count} layers in bf16, and no module has more than {self._most_layers}",
                    where=f"training.{name}",
                    expected=f"at most {self._most_layers}",
                    got=count,
                    nearest=self._most_layers or None,
                )

    def _chosen(self, unit: TracedUnit, number: int) -> TracedUnit:
        """The unit of a layer, recomputed where it is its turn (``training.recompute_every``)."""
        every = self.job.training.recompute_every
        return unit if every is None or (number + 1) % every == 0 else replace(unit, is_recomputed=False)

    def _walk_back(self, placed: Sequence[Sequence[_Placed]], num_outputs: dict[str, int]) -> list[list[Block]]:
        wanted: dict[str, list[bool]] = {}
        result: list[list[Block]] = []
        for module, group in zip(reversed(self.job.model.modules), reversed(placed), strict=True):
            gradients: Sequence[bool] | None = wanted.get(module.name)
            blocks: list[Block] = []
            for place in reversed(group):
                compiled = self._compile(place, gradients)
                is_layer = _is_layer(place, compiled)
                held, number = _held(place, compiled, is_layer), self._number(compiled)
                blocks.append(Block(place.path, number, held, is_layer, place.is_streamed))
                gradients = compiled.input_gradients
            offset = len(module.inputs)
            for source in module.sources:
                flags = list(gradients or ())[offset : offset + num_outputs[source]]
                before = wanted.get(source, [False] * len(flags))
                wanted[source] = [a or b for a, b in zip(before, flags, strict=True)]
                offset += num_outputs[source]
            result.append(blocks[::-1])
        return result[::-1]

    def _silent(self, place: _Placed) -> Block:
        """A block whose outputs get no gradient."""
        compiled = self._compile(place, (False,) * len(self._made(place, None).output_gradients))
        is_layer = _is_layer(place, compiled)
        return Block(place.path, self._number(compiled), _held(place, compiled, is_layer), is_layer, place.is_streamed)

    def _input_spec(self, spec: InputSpec, setting: ModuleSetting) -> CarrySpec:
        sequences = setting.sequences(spec.stream)
        rows = sequences.count if spec.per_sequence else sequences.tokens
        shape = (rows,) if spec.features is None else (rows, spec.features)
        packing = None if spec.per_sequence else sequences
        return CarrySpec(shape, (1,) * len(shape), spec.dtype(self.options.tensor_dtype), False, packing)

    def _place(self, unit: TracedUnit, specs: tuple[CarrySpec, ...], *, is_offloaded: bool = False) -> _Placed:
        path, body = unit.path, unit.body
        structure = self._structure(body)
        key: Hashable
        if structure is not None:
            key, parameters = structure.key, structure.parameters
        else:
            key, parameters = body.fingerprint(), tuple(parameter for parameter in body.parameters())
        styles: tuple[ShardingStyle | None, ...] = ()
        again: tuple[bool, ...] = ()
        plan, recompute = self.options.plan, self.options.recompute
        if plan.tp > 1 and structure is not None and not plan.patterns:
            styles = (plan.styles.get(path),)  # those below follow from classes, which the structure has
        elif plan.tp > 1:
            styles = tuple([plan.style(path + name) for name in self._below(key, body)])
        if recompute.patterns:
            again = tuple([recompute.matches(path + name) for name in self._below(key, body)])
        own = key, specs, styles, again, is_offloaded
        placed = own, self._options_key[unit.is_recomputed]
        before = self._before
        if before is not None and before.key[1] is placed[1] and before.key[0] == own:
            number = before.number  # hashing the options takes longer than all else here
        else:
            number = self._numbers.setdefault(placed, len(self._numbers))
        self.is_lasting &= structure is not None
        is_lasting = structure is not None
        self._before = _Placed(
            path, body, specs, parameters, placed, number, is_lasting, unit.is_recomputed, is_offloaded, self.options
        )
        return self._before

    def _below(self, key: Hashable, body: Module) -> tuple[str, ...]:
        """Paths of a module's parts below it; ``key``: equal for modules with the same."""
        if key not in self._paths:
            self._paths[key] = tuple(f".{name}" if name else "" for name, _ in body.named_modules())
        return self._paths[key]

    def _structure(self, body: Module) -> Structure | None:
        """A module's structure; that of a model in which nothing changes in place has been read."""
        if self._state.is_fixed and body in self._state.structures:
            return self._state.structures[body]
        return self._reader.read(body)

    def _compile(self, place: _Placed, gradients: Sequence[bool] | None) -> CompiledBlock:
        """The block where gradients arrive for some outputs; None: for all that can have one."""
        default = self._made(place, None)
        if gradients is None or all(
            flag or not arrives for flag, arrives in zip(gradients, default.output_gradients, strict=True)
        ):
            return default
        return self._made(place, tuple(gradients))

    def _made(self, place: _Placed, gradients: tuple[bool, ...] | None) -> CompiledBlock:
        """The compiled block, from this job's blocks, the process's, or a new trace."""

        def _make(options: TraceOptions) -> CompiledBlock:
            traced = trace_block(
                place.body,
                place.specs,
                options,
                root=place.path,
                full_recompute=place.is_recomputed,
                gradients=gradients,
                offload=place.is_offloaded,
            )
            return CompiledBlock.of(traced, place.parameters)

        known = self._known.get((place.number, gradients))
        if known is None:
            if place.is_lasting:
                known = block_like((place.key_but_options, gradients), place.options, _make)
            else:
                known = _make(place.options)
            self._known[place.number, gradients] = known
        return known

    def _number(self, compiled: CompiledBlock) -> int:
        """Number of a block's template in the job's library."""
        number = self._template.setdefault(compiled.serial, len(self.blocks))
        if number == len(self.blocks):
            self.blocks.append(compiled)
        return number


def _both_keys(options: TraceOptions) -> tuple[OptionsKey, OptionsKey]:
    """Keys of a block that keeps what it made, and of one that is recomputed."""
    return options_key(options, full_recompute=False), options_key(options, full_recompute=True)


def options_key(options: TraceOptions, *, full_recompute: bool) -> OptionsKey:
    """Everything that tracing depends on but the module, what arrives, and the styles of the module's parts."""
    plan = options.plan
    own = tuple(getattr(options, item.name) for item in fields(options) if item.name != "plan")
    of_plan = tuple(getattr(plan, item.name) for item in fields(plan) if item.name not in ("styles", "patterns"))
    return own, of_plan, full_recompute


def _masking(job: TrainingJob) -> Masking:
    """What the trace must know of the job's mask and context ranks."""
    parallel = job.parallel
    return Masking(
        context_plan(job).label,
        Balance(parallel.cp_balance).value,
        parallel.attention_split,
        by_head=parallel.cp_overlap == "heads" and parallel.cp > 1,
        query_heads=parallel.cp_gather_heads == "query" and parallel.cp > 1,
        sends_tiles=parallel.context_kind.sends_tiles and parallel.cp > 1,
    )


def _is_layer(place: _Placed, compiled: CompiledBlock) -> bool:
    """Tensors to tensors: it neither starts from data nor ends in a loss."""
    return not place.is_data and all(spec.shape for spec in compiled.output_specs)


def _held(place: _Placed, compiled: CompiledBlock, is_layer: bool) -> tuple[HeldParameter, ...]:
    """The block's own parameters."""
    path, parameters = place.path, place.parameters
    return tuple(
        [
            HeldParameter(
                slot.number,
                f"{path}.{slot.path}",
                slot.elements,
                slot.is_sharded,
                slot.is_fp8,
                slot.writers,
                slot.is_expert,
                slot.shape,
                slot.parts,
                slot.is_packed,
                parameters[slot.number],
                is_layer,
            )
            for slot in compiled.slots
        ]
    )
