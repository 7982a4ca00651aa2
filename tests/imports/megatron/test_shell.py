"""Scripts are followed as bash runs them; what only running them would tell is a gap with a line."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semu.errors import ConfigError
from semu.imports.megatron.shell_run import Script, follow_script
from semu.imports.megatron.shell_words import Field, Gap, Shell

NAMES = ("A", "B", "total_size", "E", "LIST", "ONE")
PRELUDE = "A=3\nB='two words'\ntotal_size=12\nE=\nLIST=(--x 1 'y z' \"\")\nONE=(only)\n"
TEXT = st.text("abz019_.,=/:-+", min_size=1, max_size=6)
QUOTABLE = st.text("ab 9_.,=/-()[]*|#;&", max_size=8)


def words_of(text: str, **defined: str) -> list[str]:
    """Words of the one command."""
    script = follow_script(text, "run.sh", defined)
    assert len(script.commands) == 1
    return [script.shell.shown(field.text) for field in script.commands[0].fields]


def of_bash(text: str) -> list[str]:
    """The same words, from bash itself."""
    whole = "pretrain.py() { printf '%s\\0' pretrain.py \"$@\"; }\n" + text
    done = subprocess.run(["bash", "-c", whole], capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def gaps_of(script: Script) -> list[str]:
    return [str(gap) for gap in script.shell.gaps]


@st.composite
def numbers(draw: Callable[..., object], depth: int = 0) -> str:
    """Arithmetic without division by what may be 0."""
    kind = draw(st.integers(0, 5 if depth < 3 else 1))
    if kind == 0:
        return str(draw(st.integers(0, 99)))
    if kind == 1:
        return str(draw(st.sampled_from(["A", "$A", "total_size", "${total_size}"])))
    left, right = draw(numbers(depth + 1)), draw(numbers(depth + 1))  # type: ignore[arg-type]
    if kind == 2:
        return f"({left} {draw(st.sampled_from('+-*'))} {right})"
    if kind == 3:
        return f"(0-{left}) {draw(st.sampled_from('/%'))} {draw(st.integers(1, 9))}"
    return f"{left}{draw(st.sampled_from(['+', '-', '*', ' * ']))}{right}"


@st.composite
def pieces(draw: Callable[..., object], depth: int = 0) -> str:
    """A part of a word."""
    kind = draw(st.integers(0, 9 if depth < 2 else 4))
    name = draw(st.sampled_from(NAMES[:4]))
    if kind == 0:
        return str(draw(TEXT))
    if kind == 1:
        return f"'{draw(QUOTABLE)}'"
    if kind == 2:
        return f'"{draw(QUOTABLE)}"'
    if kind == 3:
        return str(draw(st.sampled_from([f"${name}", f"${{{name}}}", f'"${name}"', f"${{#{name}}}"])))
    if kind == 4:
        return str(draw(st.sampled_from(["\\ ", "\\$A", '\\"', "\\\n", '"\\$A \\\\ \\""', "''", '""'])))
    if kind == 5:
        quoted = draw(st.booleans())
        number = f"$(({draw(numbers())}))"  # type: ignore[arg-type]
        return f'"{number}"' if quoted else number
    if kind == 6:
        inner = draw(pieces(depth + 1))  # type: ignore[arg-type]
        other = draw(st.sampled_from([name, "unset_one"]))
        return (
            f"${{{other}{draw(st.sampled_from([':-', '-', ':+', '+']))}{inner}}}"
            if other != "unset_one"
            else (f"${{{other}{draw(st.sampled_from([':-', '-']))}{inner}}}")
        )
    if kind == 7:
        array = draw(st.sampled_from(["LIST", "ONE"]))
        which = draw(st.sampled_from(["@", "*", "0", "A-3"]))
        return str(draw(st.sampled_from([f"${{{array}[{which}]}}", f'"${{{array}[{which}]}}"', f"${{#{array}[@]}}"])))
    if kind == 8:
        return f'"${{{name}:-{draw(TEXT)} $A}}"'
    return f'"{draw(QUOTABLE)}$A{draw(QUOTABLE)}"'


WORDS = st.lists(pieces(), min_size=1, max_size=3).map("".join)


@st.composite
def scripts(draw: Callable[..., object]) -> str:
    """Assignments, conditions and one command."""
    lines = [PRELUDE]
    for _ in range(draw(st.integers(0, 4))):  # type: ignore[arg-type]
        name, word = draw(st.sampled_from(NAMES)), draw(WORDS)
        is_array = name in ("LIST", "ONE")
        adds = draw(st.sampled_from(["=", "+="]))
        change = (
            f"{name}{adds}({word} # more\n  {draw(WORDS)})" if is_array else f"{name}+={word}" if adds == "+=" else None
        )
        if name in ("A", "total_size"):
            change = f"{name}=$(({draw(numbers())}))"  # type: ignore[arg-type]
        change = change or f"{name}={word}"
        kind = draw(st.integers(0, 5))
        left, right = draw(st.sampled_from(['"$B"', '"$E"', "x", '"$A"'])), draw(st.sampled_from(["x", '"$E"', "3"]))
        test = f"{left} {draw(st.sampled_from(['=', '!=', '==']))} {right}"
        if kind == 1:
            change = f"if [ {test} ]; then {change}; else E=other; fi"
        elif kind == 2:
            change = f"[[ {test} || -z $E ]] && {change}"
        elif kind == 3:
            change = f'case "$E" in\n  other|o*) {change} ;;\n  "") E=empty;;\n  *) {change}\nesac'
        elif kind == 4:
            change = f"f() {{\n  {change}\n}}\nf"
        elif kind == 5:
            change = f"if (( A > 10 )); then {change}\nelif ! [ -n {left} ]; then :\nfi"
        lines.append(str(change))
    lines.append("pretrain.py " + " \\\n  ".join(draw(st.lists(WORDS, max_size=5))) + "  # the end")  # type: ignore[arg-type]
    return "\n".join(lines)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(scripts())
def test_words_are_those_of_bash(text: str) -> None:
    script = follow_script(text, "run.sh")
    if script.shell.gaps:  # a number too large, or index out of reach
        return
    fields = script.commands[0].fields
    assert [field.text for field in fields] == of_bash(text)


@pytest.mark.slow
def test_most_random_scripts_have_no_gaps() -> None:
    """The property above says something."""
    seen: list[bool] = []

    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    @given(scripts())
    def count(text: str) -> None:
        seen.append(not follow_script(text, "run.sh").shell.gaps)

    count()
    assert sum(seen) > 0.6 * len(seen)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A=2; pretrain.py --x $((A*4)) --y=$A", ["--x", "8", "--y=2"]),
        ('A="--x 1"; A="$A --y \'2\'"; pretrain.py $A "$A"', ["--x", "1", "--y", "'2'", "--x 1 --y '2'"]),
        ("cmd='pretrain.py --x \"1 2\"'; eval $cmd", ["--x", "1 2"]),
        ("cmd='pretrain.py --x 1'; srun bash -c \"$cmd --y\"", ["--x", "1", "--y"]),
        ("pretrain.py --x 1 2>&1 > log | tee log2", ["--x", "1"]),
        ("cat <<EOF\nit's\nEOF\npretrain.py --x", ["--x"]),
        ("pretrain.py --x `date` \\\n --y", ["--x", "`date`", "--y"]),
        ('pretrain.py --x "([0]*3+[1]*58)" "Et|(tt|)*30L"', ["--x", "([0]*3+[1]*58)", "Et|(tt|)*30L"]),
        (": ${N:=4}\npretrain.py --x $N", ["--x", "4"]),
        ("pretrain.py --x $1 ${2:-b} $@", ["--x", "$1", "b"]),
        ("if [ -d /x ]; then A=1; fi\npretrain.py --x $A", ["--x", "$A"]),
        ("for i in 1 2; do A=$i; done\npretrain.py --x $A", ["--x", "$A"]),
        ("A=$(nproc)\npretrain.py --x $((A / 2))", ["--x", "$(nproc)"]),
        ("true || exit 1\nset -e; source env.sh\nexport A=1 B=2\npretrain.py --x $A$B", ["--x", "12"]),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    found = words_of(text)
    assert found[found.index("pretrain.py") + 1 :] == words


def test_gaps_say_what_and_where() -> None:
    script = follow_script("A=$1\nif [ -f x ]; then\n  B=2\nfi\nC=$(date)\npretrain.py $A $B $C $D ${E%x}", "run.sh")
    assert gaps_of(script) == [
        "$1 (line 1: no parameters are known)",
        "$B (line 3: assigned under a condition that is not known)",
        "$(date) (line 5: nothing is run)",
        "$D (line 6: not set in the script)",
        "${E%x} (line 6: the operator '%x' is not read)",
    ]


def test_functions_that_call_themselves_end() -> None:
    assert words_of("f() {\nf\nf\nf\n}\nf\npretrain.py --x")[1:] == ["--x"]
    with pytest.raises(ConfigError, match="nested too deeply"):
        follow_script("A=" + "${A:-" * 5000 + "}" * 5000, "run.sh")


def test_what_the_user_defines_stays() -> None:
    text = "N=${N:-4}\nM=$1\npretrain.py --x $N $M"
    assert words_of(text, **{"N": "8", "1": "one"})[1:] == ["--x", "8", "one"]


def test_batch_options() -> None:
    script = follow_script("#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH -N 5\npretrain.py --x", "run.sh")
    assert {name: (field.text, field.line) for name, field in script.batch_options.items()} == {
        "--nodes": ("4", 2),
        "-N": ("5", 3),
    }


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("A=1\nB='two\nC=3\n", 2, "a quote that is not closed"),
        ('A=1\n\npretrain.py "x\n', 3, "a quote that is not closed"),
        ("A=`x\n", 1, "a quote that is not closed"),
        ("A=(\n--x 1\n", 1, "an array that is not closed"),
        ("A=(--x (1))\n", 1, "not an element of an array"),
        ("\nA=${B:-1\n", 2, "a brace that is not closed"),
        ("A=$((1+2\n", 1, "'(' is not closed"),
        ("A=1\nif [ x ]; then\nA=2\n", 2, "a construct that is not closed"),
        ("A=\ue000\n", 1, "a private character"),
    ],
)
def test_what_is_no_script_is_refused_with_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        follow_script(text, "run.sh")
    assert (caught.value.where, caught.value.message) == (f"run.sh:{line}", message)


def test_a_gap_is_not_looked_for_among_all_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand gaps, each asked for twice, few are compared with one another."""
    calls: list[int] = []
    inner = Gap.__eq__

    def equal(self: Gap, other: object) -> bool:
        calls.append(0)
        return inner(self, other)

    monkeypatch.setattr(Gap, "__eq__", equal)
    shell = Shell("script.sh")
    marks = [shell.gap(f"$NAME_{number}", number, "not set in the script") for _ in range(2) for number in range(1000)]
    assert marks[:1000] == marks[1000:] and len(set(marks)) == len(shell.gaps) == 1000
    assert len(calls) < 3000


def test_adding_to_an_array_copies_nothing_and_changes_no_other() -> None:
    shell = Shell("run.sh")
    shell.assign("A", [Field("a", 1)], adds=False, is_array=True)
    kept = shell.variables["A"]
    for number in range(3):
        shell.assign("A", [Field(str(number), number)], adds=True, is_array=True)
    assert shell.variables["A"] is kept
    assert [field.text for field in kept] == ["a", "0", "1", "2"]
    for text in (
        'A=(a b)\nB=("${A[@]}")\nA+=(c)\nA+=d\nB+=("${A[@]}")\npretrain.py ${A[@]} -- ${B[@]} ${#A[@]}\n',
        'A+=(x)\nA+=("${A[@]}" y)\nB=$A\nB+=z\nE=()\npretrain.py "${A[@]}" $B $A $((E + 1))\n',
    ):
        assert words_of(text) == of_bash(text)


@pytest.mark.parametrize(
    ("test", "runs"),
    [
        ('[ -n "${KEY}" ]', False),
        ('[ "$KEY" ]', False),
        ("[[ -n $KEY ]]", False),
        ('[ -z "${KEY}" ]', None),
        ('[ "$KEY" = a ]', None),
        ("[ -n word ]", True),
    ],
)
def test_what_is_done_only_where_a_variable_is_set(test: str, runs: bool | None) -> None:
    """A variable that nobody sets is empty, as it is in the shell; what follows from anything else is not known."""
    text = f"ARGS=(--x 1)\nif {test}; then\n  ARGS+=(--project ${{P:-p}})\nfi\npython pretrain.py ${{ARGS[@]}}\n"
    script = follow_script(text, "run.sh", {})
    found = [script.shell.shown(field.text) for field in script.commands[0].fields]
    assert found[2:] == {False: ["--x", "1"], True: ["--x", "1", "--project", "p"], None: ["--x", "1", "$ARGS"]}[runs]
    assert any("taken as empty" in note for note in script.shell.notes) == (runs is False)
