"""The spec language: what it reads, what it refuses, how it prints, and that nothing in it is ever run."""

from __future__ import annotations

import keyword
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import calibrant as cal
from calibrant.core import registry
from calibrant.core.errors import SpecError
from calibrant.core.registry import Entry, describe
from calibrant.core.spec import Call, Spec, Term, build, canonical, parse, split_specs

ACCEPTED = {
    "ece": "ece",
    "ece()": "ece",
    "  ece ( bins = 15 ) ": "ece(bins=15)",
    "ece(bins=15,)": "ece(bins=15)",
    "focal(gamma=3.0)": "focal(gamma=3)",
    "focal(gamma=-0.5)": "focal(gamma=-0.5)",
    "focal(gamma=+0.5)": "focal(gamma=0.5)",
    "focal(gamma=1e-3)": "focal(gamma=0.001)",
    "focal(gamma=.5)": "focal(gamma=0.5)",
    "focal(detach=True, other=None)": "focal(detach=True, other=None)",
    "histogram(bins=15, scheme='mass')": 'histogram(bins=15, scheme="mass")',
    'histogram(bins=15, scheme="mass")': 'histogram(bins=15, scheme="mass")',
    "ce + 0.01*lp_norm(p=1)": "ce + 0.01*lp_norm(p=1)",
    "ce+0.01*lp_norm(p=1)": "ce + 0.01*lp_norm(p=1)",
    "ce + lp_norm(p=1)*0.01": "ce + 0.01*lp_norm(p=1)",
    "ce - 0.1*entropy": "ce - 0.1*entropy",
    "ce + -0.1*entropy": "ce - 0.1*entropy",
    "ce - -0.1*entropy": "ce + 0.1*entropy",
    "-0.5*ce": "-0.5*ce",
    "-ce": "-ce",
    "+ce": "ce",
    "(ce + a) - (b - c)": "ce + a - b + c",
    "-(a + b)": "-a - b",
    "a - (b + 2*c)": "a - b - 2*c",
    "1*ce": "ce",
    "1.0*ce": "ce",
    "attended(base=temperature)": "attended(base=temperature)",
    "attended(base=temperature(objective='ece'), k=2)": 'attended(base=temperature(objective="ece"), k=2)',
    "ce\t+\n0.5*sece(bandwidth=0.01)": None,  # a line break outside brackets is no spec
    "f(a='it\\'s \"quoted\"')": 'f(a="it\'s \\"quoted\\"")',
    "f(a='')": 'f(a="")',
    "_x(a=0)": "_x(a=0)",
}

REFUSED = [
    "", " ", "\n", "1", "-3", "1.5", "'ece'", "None", "True", "...", "ece(15)", "ece(bins=15, 15)", "ece(*x)",
    "ece(**x)", "ece(bins=15, bins=16)", "ece(bins==15)", "ece(bins:=15)", "ece(bins)", "ece(bins=15", "ece)", "ece[0]",
    "a.b", "a.b()", "a(b=1)(c=2)", "(lambda: 0)()", "lambda: 0", "a if b else c", "[a]", "(a, b)", "{a}", "{a: b}",
    "[x for x in a]", "(x for x in a)", "a(x for x in y)", "a / 2", "a ** 2", "a @ b", "a % 2", "a // 2", "a | b",
    "a << 1", "~a", "not a", "a and b", "a == b", "a < b", "a is b", "f'{a}'", "a(b=f'{c}')",
    "a(b=[[1]])", "a(b=(1, 'x'))", "a(b=(True,))", "a(b=(c, 1))", "a(b=(1e999,))", "a(b=1, c=(d=2))",
    "a(b={})", "a(b={1})", "a(b=1+2)", "a(b=2*3)", "a(b=1j)", "a(b=b'x')", "a(b=...)", "a(b=1e999)", "a(b=-1e999)",
    "a(b=-None)", "a(b=-True)", "a(b=-'x')", "a(b=c.d)", "a(b=c[0])", "a(b=lambda: 0)", "a(b=not c)", "a(b=c + d)",
    "a * b", "a*b*2", "'x'*a", "None*a", "True*a", "1e999*a", "1j*a", "2*3", "0.5*(a + b)", "2**a", "a; b", "a\nb",
    "a = 1", "import os", "await a", "(yield)", "a\x00", "a(b='\ud800')" + "(", "9" * 5000, f"a(b={'9' * 5000})",
    "__import__('os')", "__import__('os').system('x')", "exec('1')", "eval('1')", "open('x')", "a(b=__import__('os'))",
    "(" * 5000, "a(" * 5000, "-" * 5000 + "a", "-(" * 150 + "a" + ")" * 150 + "(", "ce # a comment\n+", "ce(a=1 b=2)",
]  # fmt: skip


@pytest.mark.parametrize(("text", "shown"), [(t, s) for t, s in ACCEPTED.items() if s is not None])
def test_reads_and_prints_in_one_form(text: str, shown: str) -> None:
    assert str(parse(text)) == shown
    assert parse(shown) == parse(text)


@pytest.mark.parametrize(
    "text", [*REFUSED, *(t for t, s in ACCEPTED.items() if s is None)], ids=lambda t: repr(t[:40])
)
def test_refuses_with_one_sentence(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)
    message = str(caught.value)
    assert "\n" not in message
    assert 10 < len(message) < 400


LONG = ["a" + " + a" * terms for terms in (200, 330, 500, 900, 990, 1500, 2900, 5000)]
LONG += ["a(b=" * depth + "1" + ")" * depth for depth in (20, 60, 90, 150)]
LONG += ["-(" * depth + "a" + ")" * depth for depth in (20, 60, 90, 150)]


@pytest.mark.parametrize("text", LONG, ids=lambda t: f"{t[:4]} x {len(t)}")
def test_a_long_or_deep_spec_is_read_or_refused(text: str) -> None:
    try:
        found = parse(text)
    except SpecError:
        return
    assert parse(str(found)) == found


@pytest.mark.parametrize("name", ["__import__", "exec", "eval", "open", "print", "os", "__builtins__"])
def test_names_of_the_language_mean_nothing(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(f"{name}(file=1)") == Spec((Term(1.0, Call(name, (("file", 1),))),))
    for kind in ("metrics", "datasets"):
        with pytest.raises(SpecError, match=f"no (metric|dataset) '{name}'"):
            build(f"{name}(file=1)", kind)
    assert capsys.readouterr() == ("", "")


def test_nothing_is_evaluated(tmp_path) -> None:
    target = tmp_path / "made"
    for text in (
        f"__import__('pathlib').Path({str(target)!r}).touch()",
        f"ece(bins=__import__('pathlib').Path({str(target)!r}).touch())",
        f"open({str(target)!r}, 'w')",
        f"[open({str(target)!r}, 'w')]",
    ):
        with pytest.raises(SpecError):
            cal.metric(text)
    assert not target.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ecee", "no metric 'ecee'; did you mean 'ece'?"),
        ("ECE(bins=15)", "no metric 'ECE'; did you mean 'ece'?"),
        ("smce", "did you mean 'smece'?"),
        ("ECE", "no metric 'ECE'"),
        ("ece(bin=3)", "ece has no argument 'bin'; did you mean 'bins'?"),
        ("ece(quantile=3)", "ece has no argument 'quantile'; there is bins"),
        ("nll(bins=3)", "nll takes no arguments, but 'bins' was given"),
        ("ece(bins=1.5)", "ece(bins=...) must be int, not 1.5"),
        ("ece(bins='15')", 'ece(bins=...) must be int, not "15"'),
        ("ece(bins=True)", "ece(bins=...) must be int, not True"),
        ("ece(bins=None)", "ece(bins=...) must be int, not None"),
        ("ece(bins=nll)", "ece(bins=...) must be int, not nll"),
        ("ece(bins=0)", "bins must be at least 1, not 0"),
        ("ece(bins=-15)", "bins must be at least 1, not -15"),
        ("mce(min_count=0)", "min_count must be at least 1, not 0"),
        ("sece(bandwidth=0)", "bandwidth must lie between 1e-5 and 10, not 0"),
        ("sece(bandwidth=-1)", "bandwidth must lie between"),
        ("kde_ece(bandwidth=11)", "bandwidth must lie between 1e-4 and"),
        ("ece(15)", "name the arguments of ece: ece(NAME=15)"),
        ("ece + nll", "is a sum or a multiple"),
        ("2*ece", "is a sum or a multiple"),
        ("-ece", "is a sum or a multiple"),
    ],
)
def test_a_wrong_metric_gets_the_remedy(text: str, message: str) -> None:
    with pytest.raises(cal.CalibrantError) as caught:
        cal.metric(text)
    assert message in str(caught.value)


def test_a_whole_float_is_an_integer() -> None:
    assert cal.metric("ece(bins=15.0)") == cal.metric("ece(bins=15)") == cal.metric("ece")
    assert canonical(cal.metric("ece(bins=15.0)")) == "ece(bins=15)"


ENTRIES = [entry for kind in registry.ROOMS for entry in describe(kind)]


SAMPLES = {str: '"some/where"'}
"""A value for each type that a required parameter has."""


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: f"{e.kind}-{e.name}")
def test_the_canonical_form_builds_the_same_piece(entry: Entry) -> None:
    needed = ", ".join(f"{p.name}={SAMPLES[p.type]}" for p in entry.parameters if p.required)
    built = build(f"{entry.name}({needed})", entry.kind)
    shown = canonical(built)
    assert build(shown, entry.kind) == built
    assert all(f"{p.name}=" in shown for p in entry.parameters if not p.convention)
    if needed:
        with pytest.raises(SpecError, match=f"{entry.name} needs"):
            build(entry.canonical, entry.kind)
        assert build(entry.canonical.replace("(", f"({needed}, ", 1), entry.kind) == built
    else:
        assert shown == entry.canonical
        assert build(entry.canonical, entry.kind) == built


@given(st.integers(1, 10**6), st.integers(1, 10**9), st.floats(1e-5, 10))
def test_any_argument_comes_back(bins: int, count: int, bandwidth: float) -> None:
    for spec in (f"mce(bins={bins}, min_count={count})", f"sece(bandwidth={bandwidth!r})"):
        made = cal.metric(spec)
        assert cal.metric(canonical(made)) == made


names = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(lambda n: not keyword.iskeyword(n))
finite = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
plain = st.one_of(st.integers(-(10**20), 10**20), finite, st.booleans(), st.none(), texts)


def calls(values: st.SearchStrategy) -> st.SearchStrategy:
    return st.builds(
        lambda name, args: Call(name, tuple(args.items())), names, st.dictionaries(names, values, max_size=3)
    )


specs = st.builds(
    lambda terms: Spec(tuple(terms)),
    st.lists(st.builds(Term, finite, calls(st.one_of(plain, calls(plain)))), min_size=1, max_size=4),
)


@pytest.mark.parametrize(
    "text", ["a\nb", "\t", "\r", "\\", "\\n", '"', "'", "é", "\x07", "\x1b[31m", "\u2028"]
)
def test_any_text_prints_in_one_line_and_reads_back(text: str) -> None:
    spec = Spec((Term(1.0, Call("f", (("a", text),))),))
    assert "\n" not in str(spec)
    assert parse(str(spec)) == spec


@given(specs)
def test_every_spec_that_prints_reads_back(spec: Spec) -> None:
    assert parse(str(spec)) == spec
    assert str(parse(str(spec))) == str(spec)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("nll", ["nll"]),
        ("nll,ece", ["nll", "ece"]),
        (" nll , ece( bins = 3,\tx=2 ) ,", ["nll", "ece( bins = 3, x=2 )"]),
        ("a(b=c(d=1,e=2),f=3),g", ["a(b=c(d=1,e=2),f=3)", "g"]),
        ("a(b=',)'),c", ["a(b=',)')", "c"]),
        (",,", []),
        ("", []),
    ],
)
def test_splitting_at_outer_commas(text: str, parts: list[str]) -> None:
    assert split_specs(text) == parts


@dataclass(frozen=True)
class Inner:
    """A piece to be an argument."""

    x: float = 1.0


@dataclass(frozen=True)
class Outer:
    """A piece with every type of argument that the language has."""

    scheme: Literal["mass", "width"]
    inner: Inner = Inner()
    size: float | None = None
    flag: bool = False
    name: str = "n"

    def __post_init__(self) -> None:
        if self.name == "type":
            raise TypeError("told by the piece")


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_pieces", {kind: dict(found) for kind, found in registry._pieces.items()})
    monkeypatch.setattr(registry, "_names", dict(registry._names))
    registry.register("metrics", "toy_inner")(Inner)
    registry.register("metrics", "toy_outer")(Outer)


@pytest.mark.usefixtures("toys")
def test_every_type_of_argument() -> None:
    made = build("toy_outer(scheme='mass', inner=toy_inner(x=2), size=3, flag=True, name='a\"b')", "metrics")
    assert made == Outer("mass", Inner(2.0), 3.0, True, 'a"b')
    assert isinstance(made.size, float)
    shown = canonical(made)
    assert shown == 'toy_outer(scheme="mass", inner=toy_inner(x=2), size=3, flag=True, name="a\\"b")'
    assert build(shown, "metrics") == made
    bare = build('toy_outer(scheme="width")', "metrics")
    assert canonical(bare) == (
        'toy_outer(scheme="width", inner=toy_inner(x=1), size=None, flag=False, name="n")'
    )


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("toy_outer", "toy_outer needs scheme; write toy_outer(scheme=...)"),
        ("toy_outer(scheme='mess')", "toy_outer(scheme=...) must be 'mass' or 'width', not \"mess\""),
        ("toy_outer(scheme=1)", "must be 'mass' or 'width', not 1"),
        ("toy_outer(scheme='mass', size='x')", 'must be float or None, not "x"'),
        ("toy_outer(scheme='mass', size=True)", "must be float or None, not True"),
        ("toy_outer(scheme='mass', flag=1)", "must be bool, not 1"),
        ("toy_outer(scheme='mass', name=None)", "must be str, not None"),
        ("toy_outer(scheme='mass', inner=3)", "must be Inner, not 3"),
        ("toy_outer(scheme='mass', inner=toy_iner)", "did you mean 'toy_inner'?"),
        ("toy_outer(scheme='mass', inner=nll)", "must be Inner"),
        ("toy_outer(scheme='mass', name='type')", "told by the piece"),
    ],
)
def test_every_wrong_type_of_argument(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        build(text, "metrics")
    assert message in str(caught.value)


def test_published_names_need_not_be_identifiers() -> None:
    @registry.register("datasets", "20-test-groups")
    @dataclass(frozen=True)
    class Groups:
        """A dataset for this test."""

        length: int = 4

    try:
        assert build("20-test-groups", "datasets") == Groups()
        assert build(" 20-test-groups(length=8) ", "datasets") == Groups(8)
        assert build(canonical(Groups(5)), "datasets") == Groups(5)
        with pytest.raises(SpecError, match="no dataset '20-test-group'; did you mean '20-test-groups'"):
            build("20-test-group(length=8)", "datasets")
    finally:
        registry._pieces["datasets"].pop("20-test-groups")
