"""Rules as one line of text, and back: a kind, then ``key=value`` words for what differs from the defaults.

    priority prefer=alternate forward=breadth(p) backward=depth(p) in-flight=2*(p-r-1)+(v-1)*p+1 admission=stage
    pattern steps=[2*(p-r)-1:F0,r:F1.F0,p-r:F1.I1.W1] at-least=2*p-1
    around inner={alternate warm-up=p-r-1}

Lists stand in ``[ ]``, rules within rules in ``{ }``; no value holds a blank outside of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, NamedTuple, NoReturn

from semu.errors import ConfigError, unknown_name
from semu.schedule.rules.alternate import Alternate
from semu.schedule.rules.around import Around
from semu.schedule.rules.best_of import BestOf
from semu.schedule.rules.block import Block
from semu.schedule.rules.earliest_start import EarliestStart
from semu.schedule.rules.expressions import Number, number_text, parse_expression
from semu.schedule.rules.instructions import Instruction
from semu.schedule.rules.pattern import Pattern
from semu.schedule.rules.priority import Priority
from semu.schedule.rules.rule import Rule
from semu.schedule.rules.separation import Separated
from semu.schedule.rules.sweep import Sweep
from semu.schedule.rules.traversal import TRAVERSALS, Traversal

_BRACKETS = {"(": ")", "[": "]", "{": "}"}


def rule_text(rule: Rule) -> str:
    """A rule as one line.

    Raises:
        ConfigError: it holds a function of Python.
    """
    kind = next((kind for kind, (made, _) in KINDS.items() if type(rule) is made), None)
    if kind is None:
        expected = f"one of {', '.join(KINDS)}"
        raise ConfigError("a rule of another kind has no text form", where="rule", expected=expected, got=rule)
    words = [kind]
    codecs = KINDS[kind][1]
    for item in fields(rule):  # type: ignore[arg-type]
        value = getattr(rule, item.name)
        if value != _default(item):
            words.append(f"{item.name.replace('_', '-')}={codecs[item.name].write(value)}")
    return " ".join(words)


def parse_rule(text: str, where: str = "rule") -> Rule:
    """The rule of a line of text.

    Raises:
        ConfigError: an unknown kind or key, a value that is none, a bracket that is not closed; ``where`` it stands.
    """
    kind, *words = list(_split(text.strip(), " ", where)) or [""]
    values: dict[str, object] = {}
    for word in words:
        key, value = _key_and_value(word, where)
        values[key.replace("-", "_")] = value
    return make_rule(kind, values, where)


def _key_and_value(word: str, where: str) -> tuple[str, str]:
    key, sign, value = word.partition("=")
    if not sign:
        raise ConfigError("not a part of a rule", where=where, expected="key=value", got=word)
    return key, value


def make_rule(kind: str, values: Mapping[str, object], where: str = "rule") -> Rule:
    """A rule of a kind.

    Args:
        values: by field; text, or what TOML has: numbers, switches, lists, and tables for rules within rules.
    Raises:
        ConfigError: as ``parse_rule``.
    """
    if kind not in KINDS:
        raise unknown_name("rule", kind, KINDS, where=where)
    made, codecs = KINDS[kind]
    given = {}
    for key, value in values.items():
        if key not in codecs:
            raise unknown_name(f"key of {kind}", key, codecs, where=where)
        given[key] = codecs[key].read(value, f"{where}.{key}")
    missing = [item.name for item in fields(made) if _default(item) is MISSING and item.name not in given]  # type: ignore[arg-type]
    if missing:
        raise ConfigError(f"{kind} without {missing[0]}", where=where, expected=", ".join(missing), got=[*given])
    return made(**given)


def _default(item: Field[Any]) -> object:
    return item.default_factory() if item.default_factory is not MISSING else item.default


# -- values -----------------------------------------------------------------------------------------------------------
class _Codec(NamedTuple):
    """How a value is written and read.

    Attributes:
        write: value -> text. read: text or a value of TOML, where it stands -> value.
    """

    write: Callable[[Any], str]
    read: Callable[[Any, str], Any]


def _read_number(value: object, where: str) -> Number:
    if isinstance(value, str) and not value.strip().isdecimal():
        parse_expression(value, where)
        return value.replace(" ", "")
    return int(_checked(value, (int, str), "an integer or an expression over p, r, v, m", where))


def _read_numbers(value: object, where: str) -> tuple[Number, ...]:
    return tuple(_read_number(one, f"{where}[{n}]") for n, one in enumerate(_items(value, where)))


def _read_limit(value: object, where: str) -> Number | tuple[Number, ...]:
    is_list = isinstance(value, list) or (isinstance(value, str) and value.startswith("["))
    return _read_numbers(value, where) if is_list else _read_number(value, where)


def _read_flag(value: object, where: str) -> bool:
    if value not in (True, False, "true", "false"):
        raise ConfigError("not a switch", where=where, expected="true or false", got=value)
    return value in (True, "true")


def _read_real(value: object, where: str) -> float:
    try:
        return float(_checked(value, (int, float, str), "a number", where))
    except ValueError:
        raise ConfigError("not a number", where=where, expected="a number", got=value) from None


def _read_traversal(value: object, where: str) -> Traversal:
    text = _checked(value, (str,), "breadth, depth or oldest", where)
    name, bracket, rest = text.partition("(")
    if name not in TRAVERSALS:
        raise unknown_name("stage traversal", name, TRAVERSALS, where=where)
    run, is_last = None, False
    for word in _items(f"[{rest[:-1]}]", where) if bracket else ():
        if word == "last":
            is_last = True
        else:
            run = _read_number(word, where)
    return TRAVERSALS[name](run, is_last)


def _write_traversal(way: Traversal) -> str:
    name = next(name for name, made in TRAVERSALS.items() if type(way) is made)
    words = [*([] if way.run is None else [number_text(way.run)]), *(["last"] if way.is_last else [])]
    return f"{name}({','.join(words)})" if words else name


def _read_rule(value: object, where: str) -> Rule:
    if isinstance(value, dict):
        return make_rule(str(value.get("rule", "priority")), {k: v for k, v in value.items() if k != "rule"}, where)
    text = _checked(value, (str,), "a rule", where)
    return parse_rule(text[1:-1] if text.startswith("{") and text.endswith("}") else text, where)


def _read_modules(value: object, where: str) -> dict[str, Rule]:
    rules = {name: _read_rule(rule, f"{where}.{name}") for name, rule in _named(value, where)}
    for name, rule in rules.items():
        if not isinstance(rule, Priority):
            raise ConfigError("a module's rule is of another kind", where=f"{where}.{name}", expected="priority")
    return rules


def _read_instructions(value: object, where: str) -> dict[str, Instruction]:
    found = {}
    for name, given in _named(value, where):
        place = f"{where}.{name}"
        if not isinstance(given, Mapping):
            inside = given[1:-1] if given.startswith("{") and given.endswith("}") else given
            given = dict(_key_and_value(word, place) for word in _split(inside, " ", place))
        fields = {"after": _NAMES, "before": _NAMES, "every": _NUMBER}
        for key in given:
            if key not in fields:
                raise unknown_name("key of an instruction", key, fields, where=place)
        values = {key: fields[key].read(own, f"{place}.{key}") for key, own in given.items()}
        if not {"after", "before"} <= set(values):
            expected = "after = [...] and before = [...]"
            raise ConfigError("an instruction without dependencies", where=place, expected=expected, got=[*values])
        found[name] = Instruction(**values)
    return found


def _write_instruction(item: tuple[str, Instruction]) -> str:
    name, own = item
    every = "" if own.every == 1 else f" every={number_text(own.every)}"
    return f"{name}:{{after={_NAMES.write(own.after)} before={_NAMES.write(own.before)}{every}}}"


def _named(value: object, where: str) -> list[tuple[str, Any]]:
    """The names of a table, or of a list ``[name:{...}]``, and what stands behind each."""
    if isinstance(value, dict):
        return [*value.items()]
    return [(name, rest) for name, _, rest in (str(one).partition(":") for one in _items(value, where))]


def _read_steps(value: object, where: str) -> tuple[tuple[Number, str], ...]:
    steps = []
    for n, item in enumerate(_items(value, where)):
        times, sign, words = item.partition(":") if isinstance(item, str) else (item[0], ":", item[1])
        if not sign:
            raise ConfigError("not a step", where=f"{where}[{n}]", expected="times:F0.B1", got=item)
        steps.append((_read_number(times, f"{where}[{n}]"), words.replace(".", " ")))
    return tuple(steps)


def _no_function(value: object, where: str) -> NoReturn:
    raise ConfigError("a function of Python has no text form", where=where, expected="Priority(choose=...) in Python")


def _checked(value: Any, kinds: tuple[type, ...], expected: str, where: str) -> Any:
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise ConfigError("a value of another kind", where=where, expected=expected, got=value)
    return value


def _items(value: object, where: str) -> list[Any]:
    """The items of a list, as text or of TOML."""
    if isinstance(value, list):
        return value
    text = str(value)
    if not (text.startswith("[") and text.endswith("]")):
        raise ConfigError("not a list", where=where, expected="[..., ...]", got=value)
    return list(_split(text[1:-1], ",", where))


def _split(text: str, sign: str, where: str) -> Iterator[str]:
    """Parts between signs that stand outside of brackets; none of them empty."""
    closing: list[str] = []
    part = ""
    for letter in text:
        if letter in _BRACKETS:
            closing.append(_BRACKETS[letter])
        elif letter in _BRACKETS.values() and (not closing or closing.pop() != letter):
            _refuse_bracket(text, where)
        if letter == sign and not closing:
            if part.strip():
                yield part.strip()
            part = ""
        else:
            part += letter
    if closing:
        _refuse_bracket(text, where)
    if part.strip():
        yield part.strip()


def _refuse_bracket(text: str, where: str) -> NoReturn:
    raise ConfigError("brackets that do not close one another", where=where, expected="( ) [ ] { } in pairs", got=text)


def _listed(write: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda values: f"[{','.join(write(value) for value in values)}]"


def _nested(rule: Rule) -> str:
    return f"{{{rule_text(rule)}}}"


_NUMBER = _Codec(number_text, _read_number)
_NUMBERS = _Codec(_listed(number_text), _read_numbers)
_WORD = _Codec(str, lambda value, where: _checked(value, (str,), "a word", where))
_FLAG = _Codec(lambda value: str(value).lower(), _read_flag)
_TRAVERSAL = _Codec(_write_traversal, _read_traversal)
_RULE = _Codec(_nested, _read_rule)
_NAMES = _Codec(_listed(number_text), lambda value, where: tuple(_items(value, where)))

KINDS: Mapping[str, tuple[type[Rule], Mapping[str, _Codec]]] = {
    "alternate": (Alternate, {"warm_up": _NUMBER, "weight_delay": _NUMBER, "group": _NUMBER}),
    "sweep": (Sweep, {"in_order": _FLAG}),
    "pattern": (
        Pattern,
        {
            "steps": _Codec(
                _listed(lambda step: f"{number_text(step[0])}:{'.'.join(step[1].split())}"),
                _read_steps,
            ),
            "at_least": _NUMBER,
        },
    ),
    "block": (Block, {"steps": _NUMBERS, "waits": _NUMBERS}),
    "priority": (
        Priority,
        {
            "prefer": _WORD,
            "units": _NUMBERS,
            "forward": _TRAVERSAL,
            "backward": _TRAVERSAL,
            "in_flight": _Codec(
                lambda value: _NUMBERS.write(value) if isinstance(value, tuple) else number_text(value), _read_limit
            ),
            "admission": _WORD,
            "when_blocked": _WORD,
            "checks": _NAMES,
            "modules": _Codec(_listed(lambda item: f"{item[0]}:{_nested(item[1])}"), _read_modules),
            "instructions": _Codec(_listed(_write_instruction), _read_instructions),
            "clock": _WORD,
            "choose": _Codec(number_text, _no_function),
        },
    ),
    "earliest-start": (
        EarliestStart,
        {
            "split": _FLAG,
            "patient": _FLAG,
            "group": _Codec(str, lambda value, where: int(_checked(_read_number(value, where), (int,), "", where))),
            "eager_weights": _FLAG,
            "slack": _Codec(repr, _read_real),
        },
    ),
    "best-of": (
        BestOf,
        {
            "rules": _Codec(
                _listed(_nested),
                lambda value, where: tuple(
                    _read_rule(one, f"{where}[{n}]") for n, one in enumerate(_items(value, where))
                ),
            ),
            "activations": _NUMBER,
        },
    ),
    "separated": (Separated, {"inner": _RULE, "activations": _NUMBER}),
    "around": (Around, {"inner": _RULE, "group": _NUMBER}),
}
"""Kinds of rules by the word with which their text begins, and the fields of each."""
