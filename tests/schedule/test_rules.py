"""Rules: the orders of before, FlexPipe's priorities, expressions, refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from schedule.orders_before import lines

from semu.errors import ConfigError, ScheduleError, SemuError
from semu.schedule.placement import FlowModule, Placement, stage_flow
from semu.schedule.registry import ALL_SCHEDULES
from semu.schedule.rules.alternate import Alternate
from semu.schedule.rules.block import Block
from semu.schedule.rules.expressions import Size, parse_expression, value_of
from semu.schedule.rules.pattern import Pattern
from semu.schedule.rules.priority import Priority
from semu.schedule.rules.rule import Rule
from semu.schedule.rules.sweep import Sweep
from semu.schedule.rules.text import parse_rule, rule_text
from semu.schedule.rules.traversal import Breadth, Depth, Oldest
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape
from semu.schedule.study import PipelineStudy

BEFORE = Path(__file__).parent / "orders_before.txt"


@pytest.mark.slow
def test_every_schedule_has_the_orders_that_it_had_before_rules() -> None:
    """p = 1 to 8, eight m, v = 1 to 4; costs, encoders, frozen beginnings, virtual stages of several chunks."""
    before, now = BEFORE.read_text(encoding="utf-8").splitlines(), list(lines())
    assert {line.split()[0] for line in before} == set(ALL_SCHEDULES)
    assert len(before) == len(now) > 2000
    for one, other in zip(before, now, strict=True):
        assert one == other


# -- Algorithm 1 gives the classics -----------------------------------------------------------------------------------
LATE = Depth(is_last=True)
CLASSICS = {
    "1f1b": Priority(in_flight="p - r"),
    "eager-1f1b": Priority(in_flight="2 * (p - r) - 1"),
    "gpipe": Priority(prefer="forward", backward=LATE),
    "interleaved": Priority(
        prefer="alternate",
        forward=Breadth("p"),
        backward=Depth("p"),
        in_flight="2 * (p - r - 1) + (v - 1) * p + 1",
        admission="stage",
        when_blocked="wait",
    ),
}


@pytest.mark.paper
@pytest.mark.parametrize("name", CLASSICS)
def test_priorities_give_the_classics_token_by_token(name: str) -> None:
    family = ALL_SCHEDULES[name]
    for p in range(1, 9):
        for v in (1,) if name != "interleaved" else (2, 3, 4):
            for m in (1, 2, 3, 4, 6, 8, 12, 16, 24):
                if family.misfit(p, m, v) is None:
                    shape = family.shape(p, m, v)
                    assert Schedule(name, CLASSICS[name](shape)) == family(shape), (p, m, v)


@pytest.mark.paper
def test_closed_forms_of_priorities() -> None:
    """Interleaved (m v + p - 1)(f + b), Hanayo 2 (m v + p - 1) f and Chimera (2 m + p - 2) f at f = b."""
    chimera = Priority(forward=Depth(), backward=Depth(), in_flight="p", clock="steps")
    hanayo = Priority(forward=Oldest(), backward=Oldest(), in_flight="p * v", clock="steps")
    for p in (2, 4, 6, 8):
        for m in (p, 2 * p, 3 * p):
            shape = Placement.BIDIRECTIONAL.shape(p, m, 2)
            study = PipelineStudy.of(shape, input_s=0.5, weight_s=0.5)
            found = study.evaluate(Schedule("chimera", chimera(shape)))
            assert (found.makespan_s, int(found.peak_bytes.max())) == (2 * m + p - 2, p)
            for v in (2, 4):
                wave = Placement.V_SHAPE.shape(p, m, v)
                study = PipelineStudy.of(wave, input_s=0.5, weight_s=0.5)
                assert study.evaluate(Schedule("hanayo", hanayo(wave))).makespan_s == 2 * (m * v + p - 1)
                chain = PipelineShape.chain(p, m, v)
                study = PipelineStudy.of(chain, forward_s=2, input_s=3, weight_s=1)
                found = study.evaluate(Schedule("interleaved", CLASSICS["interleaved"](chain)))
                assert found.makespan_s == (m * v + p - 1) * 6


def test_without_a_limit_figure_5_is_eager() -> None:
    """FlexPipe's Fig. 5, backward first and no limit, is eager 1F1B: its ``1F1B`` needs in_flight. Where a backward
    takes twice a forward, it holds still more."""
    shape, eager = PipelineShape.chain(4, 8), ALL_SCHEDULES["eager-1f1b"]
    assert Schedule("eager-1f1b", Priority(clock="steps")(shape)) == eager(shape)
    study = PipelineStudy.of(shape)
    assert study.evaluate(Schedule("free", Priority()(shape))).peak_bytes.tolist() == [8, 7, 4, 1]
    assert study.evaluate(eager(shape)).peak_bytes.tolist() == [7, 5, 3, 1]


def test_each_module_follows_its_own_rule() -> None:
    """A rank with chunks of one module alone; the rule of the others stays."""
    modules = [FlowModule("image", (0, 1)), FlowModule("text", (2, 3)), FlowModule("loss", (1,), ("image", "text"))]
    shape = stage_flow(4, 6, modules)
    rule = Priority(in_flight=(2, 2), modules={"text": Priority(prefer="forward")})
    orders = [" ".join(map(str, order)) for order in rule(shape)]
    assert orders[2].startswith("2F0 2F1 2F2 2F3 2F4 2F5 2B0")
    assert orders[0].startswith("0F0 0F1 0B0 0F2 0B1")
    Schedule("mixed", rule(shape)).validate(shape)


# -- refusals ---------------------------------------------------------------------------------------------------------
SHAPE = PipelineShape.chain(4, 8, 2)


@pytest.mark.parametrize(
    ("rule", "where", "words"),
    [
        (lambda: Priority(in_flight=0)(SHAPE), "in_flight", "too small"),
        (lambda: Priority(in_flight=(3, 3, 3))(SHAPE), "in_flight", "another length"),
        (lambda: Priority(forward=Breadth(0))(SHAPE), "forward.run", "too small"),
        (lambda: Priority(units=(1, "p - 4"))(SHAPE), "units", "too small"),
        (lambda: Priority(prefer="forwards"), "prefer", "forwards"),  # type: ignore[arg-type]
        (lambda: Priority(checks=("patent",)), "checks", "patent"),
        (lambda: Priority(modules={"img": Priority()})(SHAPE), "modules", "img"),
        (lambda: Oldest("p"), "run", "oldest"),
        (lambda: Pattern((("m", "G0"),)), "steps[0]", "not a word"),
        (lambda: Pattern((("m", "F2"),))(SHAPE), "steps[0]", "no such virtual stage"),
    ],
)
def test_bad_rules_name_the_place(rule: Callable[[], object], where: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        rule()
    assert (caught.value.exit_code, caught.value.where) == (2, where)


def test_rules_that_do_not_fit_the_pipeline() -> None:
    with pytest.raises(ScheduleError, match="whole groups") as caught:
        Alternate("p - r - 1", group="p")(PipelineShape.chain(4, 6, 2))
    assert caught.value.nearest in (4, 8)
    with pytest.raises(ScheduleError, match="building block"):
        Block((1, 1))(Placement.V_SHAPE.shape(3, 4, 2))


def test_a_limit_that_makes_the_ranks_wait_for_ever_is_named() -> None:
    """Some limits of single stages do, from p = 4, m = 8 on a V; whole microbatches never."""
    shape, stuck = Placement.V_SHAPE.shape(4, 8, 2), 0
    for limit in range(1, 9):
        for forward in (Breadth(), Depth(), Oldest()):
            try:
                made = Priority(forward=forward, in_flight=limit, admission="stage")(shape)
            except ScheduleError as error:
                stuck += 1
                assert (error.exit_code, error.nearest) == (4, "admission = microbatch")
                assert error.where is not None
                assert error.where.startswith("in_flight, rank ")
            else:
                Schedule("legal", made).validate(shape)
            if limit >= 2:
                Schedule("legal", Priority(forward=forward, in_flight=limit)(shape)).validate(shape)
    assert 0 < stuck < 24


# -- expressions ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text",
    ["p - r - 1", "2*(p-r)-1", "-p + 3 * -r", "m // max(1, m // p)", "min(p, v, m) % 3 + 7", "p - r - (v - m)", "12"],
)
def test_expressions_are_what_python_makes_of_them(text: str) -> None:
    for size in (Size(1, 0, 1, 1), Size(4, 3, 2, 8), Size(8, 5, 3, 17)):
        assert parse_expression(text)(size) == eval(text, {"min": min, "max": max}, size._asdict())


@pytest.mark.parametrize(
    "text", ["", "q + 1", "p +", "(p", "p)", "p ** 2", "__import__('os')", "p.r", "min(p,)", "1 2", "p / 2", "max"]
)
def test_other_expressions_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not an expression") as caught:
        parse_expression(text, "schedule.mine.in_flight")
    assert caught.value.where == "schedule.mine.in_flight"


def test_a_division_by_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="division by zero"):
        value_of("p // r", Size(4, 0, 1, 1), "warm_up")


# -- text -------------------------------------------------------------------------------------------------------------
RULES = [
    *(family.orders for family in ALL_SCHEDULES.values() if isinstance(family.orders, Rule)),
    *CLASSICS.values(),
    Priority(
        prefer="forward",
        units=(2, "max(1, v)"),
        forward=Depth("p", is_last=True),
        in_flight=(3, "p - r"),
        checks=("patient",),
        modules={"image": Priority(in_flight=4), "text": Priority(modules={"x": Priority()})},
    ),
    Sweep(in_order=True),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule_text(rule)[:40])
def test_the_text_of_a_rule_reads_back(rule: Rule) -> None:
    text = rule_text(rule)
    assert "\n" not in text
    again = parse_rule(text)
    assert rule_text(again) == text
    assert type(again) is type(rule)
    if not (isinstance(rule, Priority) and rule.modules):
        for shape in (Placement.V_SHAPE.shape(4, 8, 2), Placement.V_SHAPE.shape(3, 9, 2)):
            assert outcome(again, shape) == outcome(rule, shape)


def outcome(rule: Rule, shape: PipelineShape) -> object:
    """Orders, or why there are none."""
    try:
        return list(rule(shape))
    except SemuError as error:
        return str(error)


@pytest.mark.parametrize(
    ("text", "where", "nearest"),
    [
        ("priorities", "rule", "priority"),
        ("priority forwards=depth", "rule", "forward"),
        ("priority forward=deep", "rule.forward", "depth"),
        ("priority in-flight=p-q", "rule.in_flight", None),
        ("priority in-flight=[3,3", "rule", None),
        ("priority in-flight", "rule", None),
        ("alternate", "rule", None),
        ("sweep in-order=yes", "rule.in_order", None),
        ("around inner={alternate warm-up=q}", "rule.inner.warm_up", None),
        ("priority modules=[image:{sweep}]", "rule.modules.image", None),
        ("", "rule", None),
    ],
)
def test_text_that_is_no_rule_names_the_place(text: str, where: str, nearest: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_rule(text)
    assert (caught.value.exit_code, caught.value.where) == (2, where)
    if nearest is not None:
        assert caught.value.nearest == nearest


def test_a_function_of_python_has_no_text() -> None:
    rule = Alternate(lambda p, r, v, m: p - r - 1)
    assert list(rule(PipelineShape.chain(4, 8))) == list(Alternate("p - r - 1")(PipelineShape.chain(4, 8)))
    with pytest.raises(ConfigError, match="function of Python"):
        rule_text(rule)
