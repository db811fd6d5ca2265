"""What mkdocs fills in: pages made from the registry, from the bibliography and from files of the root.

Four markers are replaced, each alone on its line:

    <!-- registry:KIND -->    a section for every registered piece of that kind
    <!-- plot:SPEC,... -->    the curves of some losses in one figure
    <!-- references -->       every entry of references.bib
    <!-- file:NAME -->        a Markdown file of the repository's root, without its first heading
"""

import dataclasses
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import plots  # mkdocs puts the folder of a hook on the path
except ModuleNotFoundError:
    from docs import plots

HERE = Path(__file__).resolve().parent
BIBLIOGRAPHY = HERE / "references.bib"
MARKER = re.compile(r"^<!-- (registry|references|file|plot)(?::([^>]+?))? -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page, before it becomes HTML."""
    return MARKER.sub(lambda found: MAKERS[found[1]](found[2]), markdown)


def registry(kind: str) -> str:
    """A section for every piece of one kind, in name order."""
    from calibrant.core.registry import describe

    entries = describe(kind)
    return "\n\n".join(section(entry) for entry in entries) if entries else f"There are no {kind} yet."


def plot(specs: str) -> str:
    """One figure with the curves of some losses."""
    from calibrant.core.spec import split_specs

    return plots.figure(split_specs(specs), reference=False, label=f"Loss and gradient of {specs}")


def section(entry: Any) -> str:
    """One piece: its name and canonical form, what it says of itself, its parameters and its paper."""
    from calibrant.core.registry import type_name

    parts = [f"## `{entry.name}`", f"`{entry.canonical}`", prose(entry.doc)]
    drawn = plots.entry_plot(entry)
    if drawn:
        parts.append(drawn)
    facts = [(label, getattr(entry.piece, name, None)) for label, name in FACTS]
    shown = [f"**{label}:** {describe_fact(value)}" for label, value in facts if is_fact(value)]
    if entry.kind == "calibrators":
        shown += [f"**{label}:** {text}" for label, text in calibrator_facts(entry).items()]
    if entry.paper:
        shown.append(f"**Paper:** [{entry.paper}](references.md#{entry.paper})")
    if shown:
        parts.append("  \n".join(shown))
    if entry.parameters:
        rows = ["| parameter | type | default |", "|---|---|---|"]
        for p in entry.parameters:
            default = "required" if getattr(p, "required", False) else f"`{p.default!r}`"
            rows.append(f"| `{p.name}` | {cell(type_name(p.type))} | {cell(default)} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


FACTS = [
    ("Better", "better"),
    ("Range", "range"),
    ("Reads", "scope"),
    ("Labels", "targets"),
    ("The interval is for", "population"),
    ("There is no interval, because", "no_interval"),
]


def calibrator_facts(entry: Any) -> dict[str, str]:
    """Scope and promise of a calibrator, which belong to an instance: by default, and where a choice changes them."""
    made = entry.piece()
    found = {"Scope": [made.scope], "Keeps the argmax": ["yes" if made.keeps_argmax else "no"]}
    for p in entry.parameters:
        for value in typing.get_args(p.type) if typing.get_origin(p.type) is typing.Literal else ():
            try:
                other = dataclasses.replace(made, **{p.name: value})
            except ValueError:  # a choice that needs another parameter beside it
                continue
            told = {"Scope": other.scope, "Keeps the argmax": "yes" if other.keeps_argmax else "no"}
            for label, text in told.items():
                if text != found[label][0]:
                    found[label].append(f"{text} with `{p.name}={value!r}`")
    return {label: "; ".join(texts) for label, texts in found.items()}


def is_fact(value: object) -> bool:
    """Class attributes that are plain values; a property or a method says nothing without an instance."""
    return isinstance(value, str | tuple) and bool(value)


def describe_fact(value: object) -> str:
    """`lower`, or `0 to 1` for a pair."""
    if isinstance(value, tuple):
        return " to ".join(
            "∞" if end == float("inf") else "−∞" if end == -float("inf") else f"{end:g}" for end in value
        )
    return prose(str(value))


def prose(text: str) -> str:
    """Docstring text as Markdown: indented is code, `$...$` is TeX, and outside those no sign has a meaning."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        if all(line.startswith("    ") for line in paragraph.splitlines()):
            paragraphs.append(paragraph)
        else:
            pieces = re.split(r"(`[^`]*`|\$[^$]+\$)", paragraph)
            pieces[::2] = [re.sub(r"([\\*_<>\[\]|#])", r"\\\1", piece) for piece in pieces[::2]]
            pieces[1::2] = [wrapped(piece) if piece.startswith("$") else piece for piece in pieces[1::2]]
            paragraphs.append("".join(pieces))
    return "\n\n".join(paragraphs)


def wrapped(tex: str) -> str:
    """TeX as one word that Markdown leaves alone, until `on_page_content` unwraps it."""
    return f"TeX{tex.strip('$').encode().hex()}XeT"


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs for the HTML of every page: wrapped TeX becomes MathML, which browsers draw by themselves."""
    return re.sub(r"TeX([0-9a-f]+)XeT", lambda found: mathml(bytes.fromhex(found[1]).decode()), html)


def mathml(tex: str) -> str:
    """Inline MathML; the letters of an upright word such as `conf` are joined to one word."""
    from latex2mathml.converter import convert

    letters = re.compile(r'(?:<mi mathvariant="normal">\w</mi>){2,}')
    return letters.sub(
        lambda word: f"<mi>{re.sub('<[^>]+>', '', word[0])}</mi>", convert(" ".join(tex.split()))
    )


def cell(text: str) -> str:
    """Text inside a table."""
    return text.replace("|", "\\|")


@dataclass(frozen=True)
class Reference:
    """One entry of the bibliography."""

    key: str
    kind: str
    fields: dict[str, str]


def bibliography(text: str) -> list[Reference]:
    """The entries of a BibTeX file in the one form that ours has: a field a line, each value in braces."""
    entries = []
    for kind, key, body in re.findall(r"^@(\w+)\{([^,\s]+),\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        entries.append(Reference(key, kind, dict(re.findall(r"^  (\w+) = \{(.*)\},$", body, re.MULTILINE))))
    return entries


def references(_: str | None) -> str:
    """The whole bibliography, by key."""
    entries = sorted(bibliography(BIBLIOGRAPHY.read_text(encoding="utf-8")), key=lambda entry: entry.key)
    return "\n\n".join(citation(entry) for entry in entries)


def citation(entry: Reference) -> str:
    """One reference as a paragraph that `#key` leads to."""
    plain = {name: re.sub(r"[{}$]", "", value).replace("\\ell", "ℓ") for name, value in entry.fields.items()}
    authors = [" ".join(reversed(name.split(", ", 1))) for name in plain["author"].split(" and ")]
    where = f"*{plain.get('journal') or plain.get('booktitle') or plain.get('institution')}*"
    if "volume" in plain:
        where += f" {plain['volume']}" + (f"({plain['number']})" if "number" in plain else "")
    if "pages" in plain:
        where += f", {plain['pages'].replace('--', '–')}"
    link = plain.get("url") or (f"https://doi.org/{plain['doi']}" if "doi" in plain else "")
    title = f"[{prose(plain['title'])}]({link})" if link else prose(plain["title"])
    line = f"{', '.join(authors)}. {title}. {where}, {plain['year']}."
    return f"`{entry.key}` {line}\n{{: #{entry.key} }}"


def file(name: str) -> str:
    """A Markdown file of the root; what it links to under docs/ is here a neighbour."""
    text = (HERE.parent / name).read_text(encoding="utf-8")
    body = re.sub(r"\A# .*\n", "", text)
    body = re.sub(r"\]\(docs/", "](", body)
    for root_file, page in ROOT_PAGES.items():
        body = body.replace(f"]({root_file}", f"]({page}")
    return body


ROOT_PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
MAKERS: dict[str, Callable[[str], str]] = {
    "registry": registry,
    "references": references,
    "file": file,
    "plot": plot,
}
