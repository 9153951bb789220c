"""The small shell and the real one come to the same arguments: generated scripts of variables, arrays, arithmetic, conditions, loops and here-documents."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from everybyte.basics.errors import BadInput
from everybyte.formats.context import Context
from everybyte.formats.shell.interpreter import Interpreter
from everybyte.formats.shell.script import commands_of_text
from everybyte.formats.shell.values import plain
from everybyte.formats.source import Source

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")

SET_UP = 'emit() { printf \'%s\\0\' "$#" "$@"; }\n'
VALUES = "A=alpha B='b c' C_1= N=7 M=-3\nL=(one 'two words' \"\" x/y.tar.gz)\ndeclare -A D=([k]=v [two]='w x')\n"
Texts = st.SearchStrategy[str]


def one_of(*texts: str) -> Texts:
    """One of some texts."""
    return st.sampled_from(texts)


def put(template: str, *parts: Texts) -> Texts:
    """A text with a generated part at every `@`."""
    pieces = template.split("@")
    assert len(pieces) == len(parts) + 1, template
    return st.tuples(*parts).map(lambda made: pieces[0] + "".join(text + piece for text, piece in zip(made, pieces[1:], strict=True)))


NAMES = one_of("A", "B", "C_1")
PLAIN = one_of("x", "--flag", "a.b", "q/r", "0", "10", "model-7B", "=", "a=b", "..", "%", "^", "at", "+", ",", "n:m", "é")
QUOTED = one_of("'$A b'", '"b  c"', '"$A"', '"${B}x"', "''", '"\\$A \\" \\\\"', "\\ ", "\\$", "$'t\\tn'", '"${L[@]}"', '"${L[*]}"', '"a\nb"', "'it'\\''s'")
SUMS = st.recursive(
    one_of("1", "2", "12", "0x1f", "010", "N", "M", "$N", "${M}", "2#101"),
    lambda inner: st.one_of(
        put("@ @ @", inner, one_of("+", "-", "*", "|", "&", "^", "<<", "<", ">=", "==", "!=", "&&", "||"), inner),
        put("@ @ @", inner, one_of("/", "%"), one_of("3", "7", "-2")),
        put("(@ ? @ : @)", inner, inner, inner),
        put("(@)", inner),
        put("- @", inner),
        put("!@", inner),
        one_of("(N += 2)", "N++", "--M", "N**2"),
    ),
    max_leaves=5,
)
GLOBS = one_of("*", "a*", "*a", "?", "[a-m]", "a", "l", "*/", "*.", "b?c", "%", "[!a]", "'*'", "x/y", "*[.]*")
DEFAULTED = put("${@@@}", NAMES, one_of(":-", "-", ":+", "+"), one_of("d", "", "$N", '"q r"', "${A}e", "-1"))
CUT = put("${@@@}", one_of("A", "B", "C_1", "L", "L[3]"), one_of("#", "##", "%", "%%"), GLOBS)
REPLACED = put("${@@@/@}", one_of("A", "B", "C_1", "L[1]", "L[\x40]"), one_of("/", "//", "/#", "/%"), GLOBS, one_of("Z", "", "$N"))
CASED = put("${@@}", NAMES, one_of("^", "^^", ",", ",,"))
SLICED = put("${@@}", one_of("A", "B"), one_of(":1", ":0:2", ": -2", ":1:-1", ":N-6"))
OF_LISTS = one_of("${#A}", "${#L[\x40]}", "${L[\x40]:1}", "${L[\x40]:1:2}", "${L[N-6]}", "${L[-1]}", "${D[k]}", "${D[two]}", "${!D[\x40]}", "${L[*]}")
FORMS = st.one_of(DEFAULTED, CUT, REPLACED, CASED, SLICED, OF_LISTS, one_of("${A:=z}", "$#", "$\x40", "${A\x40U}"))
EXPANDED = st.one_of(one_of("${A}", "${B}", "${C_1}", "${N}", "${L[1]}", "${L}"), put("$((@))", SUMS), FORMS, put('"@"', FORMS))
PRINTED = st.one_of(
    one_of("$(echo a b)", "$(echo $A; echo c)", "`echo $N`", "$(printf '%s-' x y)", "$(expr 12 / 4)", '"$(cat <<E\n$A $B\nE\n)"', "$(basename x/y.gz .gz)"),
    one_of("$(dirname a/b/c)", "$(seq 1 3)", '$(echo "$B" | tr b x)', "$(echo 1,2,3 | tr ',' '\\n' | wc -l)", "$(echo 0,1 | awk -F, '{print NF}')"),
)
BRACED = one_of("{a,b}", "{1..3}", "x{${A},c}y", "{}")
ARGUMENT = st.lists(st.one_of(PLAIN, QUOTED, EXPANDED, PRINTED, BRACED), min_size=1, max_size=3).map("".join)
EMITTED = st.lists(ARGUMENT, min_size=0, max_size=4).map(lambda arguments: " ".join(["emit", *arguments]))
ASSIGNED = st.one_of(
    put("@@@", NAMES, one_of("=", "+="), ARGUMENT),
    st.lists(ARGUMENT, max_size=3).map(lambda arguments: "L=(\n  " + "  # why\n  ".join(arguments) + "\n)"),
    put("L+=(@ @)", ARGUMENT, ARGUMENT),
    put("@=$((@))", one_of("N", "M"), SUMS),
    put("(( N = @ )) || true", SUMS),
    one_of("L[2]=$A", "export A B", "unset 'C_1'; C_1=u", "set -- p 'q r'", "shift || true", "IFS=, read -ra L <<< 'a,b c,d'", 'read -r A B <<< "$B e f"'),
    one_of("read -r -d '' A <<'E' || true\n  raw $N\nE", "printf -v A '%03d' 5", "declare -A D; D[k]=${A}"),
)
CONDITION = st.one_of(
    put("[ @ @ @ ]", one_of('"$A"', '"$B"', '"$C_1"'), one_of("=", "!="), one_of("alpha", '""', '"$A"')),
    put("[ @ @ @ ]", one_of("$N", "$M"), one_of("-eq", "-lt", "-ge"), one_of("7", "$M", "0")),
    one_of('[ -z "$C_1" ]', '[ -n "$A" ]', "[[ $A == a* ]]", '[[ $B != "b c" && -n $A ]]', "[[ $N -gt 2 || -z $A ]]", "[[ $A =~ ^al ]]", "[[ $N == 7 ]]"),
    one_of('[ "$A" = x -o -n "$B" ]', "(( N > 3 ))", "! (( M ))", "[[ ! ( -z $A ) ]]", "true", "false", '[ ! -z "$A" ]', "[[ -n ${A#alpha} ]]"),
)
STATEMENT = st.recursive(
    st.one_of(EMITTED, ASSIGNED),
    lambda inner: st.one_of(
        put("if @; then\n  @\nelse\n  @\nfi", CONDITION, inner, inner),
        put("@ @ { @\n}", CONDITION, one_of("&&", "||"), inner),
        put("for i in @ @; do emit $i\n @\ndone", ARGUMENT, ARGUMENT, inner),
        put('case $A in a*|b) @\n;; "$B") @\n;; *) emit other;; esac', inner, inner),
        put("f() { local A=in\n@\n}\nf one 'two three'", inner),
        put("( @\n)", inner),
        put("for (( j = 0; j < 2; j++ )); do @\ndone", inner),
    ),
    max_leaves=4,
)
SCRIPTS = st.lists(STATEMENT, min_size=1, max_size=5).map(lambda lines: VALUES + "\n".join([*lines, 'emit end "$A" "$B" $N $M "${L[@]}"\n']))


LAUNCH = """#!/bin/bash
#SBATCH --nodes=2
M=${1:-org/m}
ARGS=(--max-model-len $((4 * 1024)) # tokens
  --dtype "half")
cat > c.yaml <<EOF
max-num-seqs: ${N:-8}
EOF
if [ -z "$M" ]; then echo none; exit 1; fi
case "$M" in org/*) X=1 ;; *) X=2 ;; esac
for i in {0..1}; do CUDA_VISIBLE_DEVICES=$i vllm serve "$M" "${ARGS[@]}" --config c.yaml > log 2>&1 & done
srun bash -c 'torchrun --nproc_per_node 4 train.py'
"""


def of_bash(script: str, folder: Path) -> list[list[str]] | None:
    """The arguments of every `emit` as bash makes them; None if bash itself refuses the script or grows without end."""
    file = folder / "script.sh"
    file.write_text(SET_UP + script)
    clean = ["/usr/bin/env", "-i", "LC_ALL=C.UTF-8", "PATH=/usr/bin:/bin", "bash", "--noprofile", "--norc", str(file)]
    try:
        run = subprocess.run(clean, cwd=folder, capture_output=True, text=True, timeout=3, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return None
    if run.returncode or run.stderr:
        return None
    out, fields = [], run.stdout.split("\0")[:-1]
    while fields:
        count = int(fields.pop(0))
        out.append(fields[:count])
        fields = fields[count:]
    return out


def of_ours(script: str) -> list[list[str]]:
    """The same from the small shell."""
    shell = Interpreter("script.sh")
    shell.follow(shell.parse(script, 1))
    return [[plain(word) for word in started.words[1:]] for started in shell.started if plain(started.words[0]) == "emit" and not started.alternative]


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(script=SCRIPTS)
@example(script="X=1\nemit ${X:--1} ${Y:--1}\n")
@example(script='A=(a # first\n b)\nemit "${A[@]}" ${#A[@]}\n')
@example(script="A='x y'\nemit ${A//[xy]/${A:0:1}} $(( ${#A} * 2 )) \"${A/ /\\ }\"\n")
def test_every_argument_is_what_bash_makes_of_it(script: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each word of each command is the one that bash hands to the program."""
    expected = of_bash(script, tmp_path_factory.mktemp("shell"))
    if expected is not None:
        assert of_ours(script) == expected


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_broken_script_is_read_or_refused_with_its_place(data: st.DataObject) -> None:
    """Whatever is cut out of or put into a script, the answer is commands or one message with a line."""
    text = LAUNCH
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        put_in = data.draw(st.sampled_from([*"$(){}[]`'\"\\\n;|&<>#=*! ", "$((", "<<E", "${", "[[", "done", "esac", "fi"]))
        text = text[:at] + put_in + text[at + data.draw(st.integers(0, 12)) :]
    source = Source(text, "x.sh")
    try:
        commands = commands_of_text(source, Context([source]))
    except BadInput as refused:
        assert refused.path.startswith("x.sh")
        assert refused.message
    else:
        assert all(command.words for command in commands)
