"""The methods of assignment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from semu.records import dataclass
from semu.searcher.assignment.methods.coupled import deal_coupled
from semu.searcher.assignment.methods.disttrain import deal_disttrain
from semu.searcher.assignment.methods.entrain import deal_entrain
from semu.searcher.assignment.methods.even import deal_even
from semu.searcher.assignment.methods.in_order import deal_in_order
from semu.searcher.assignment.methods.literal import deal_literal
from semu.searcher.assignment.methods.shuffled import deal_at_random
from semu.searcher.assignment.methods.stratified import deal_stratified
from semu.searcher.assignment.problem import AssignmentProblem, Dealt


@dataclass(frozen=True)
class Method:
    """A method of assignment.

    Attributes:
        deal: decides. doc: in a line. needs_encoder: whether it is for models with encoders only.
        beside: the method that a search looks at too where it deals otherwise: this one chose under the job's own
            schedule; None: it makes no such choice.
    """

    deal: Callable[[AssignmentProblem], Dealt]
    doc: str
    needs_encoder: bool = False
    beside: str | None = None


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "random": Method(deal_at_random, "a drawn order, even numbers of samples"),
        "order": Method(deal_in_order, "the order of the file, packed"),
        "disttrain": Method(deal_disttrain, "sizes to replicas, microbatches reordered (2408.04275)"),
        "stratified": Method(deal_stratified, "even encoder loads (001 §4.5.1)", needs_encoder=True),
        "entrain-literal": Method(deal_literal, "stratified, then deferral (001 alg. 4)", needs_encoder=True),
        "even": Method(deal_even, "even loads of encoders and of the backbone, each by itself", needs_encoder=True),
        "coupled": Method(deal_coupled, "even loads of all pipeline ranks"),
        "entrain": Method(deal_entrain, "coupled, deferring where the simulated iteration gains", beside="coupled"),
    }
)
"""Methods by name, in the order of tables."""
DEFAULT_METHOD = "entrain"
