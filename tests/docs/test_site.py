"""The documentation builds strictly, and the built site loads nothing from anywhere."""

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from calibrant.core.registry import describe
from docs import hooks

ROOT = Path(__file__).parents[2]
EXTERNAL = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
LOADING = {
    "script": ["src"],
    "iframe": ["src"],
    "embed": ["src"],
    "audio": ["src"],
    "video": ["src"],
    "input": ["src"],
    "img": ["src", "srcset"],
    "source": ["src", "srcset"],
    "image": ["href"],
    "use": ["href"],
    "object": ["data"],
}


class Assets(HTMLParser):
    """Collects what a browser would fetch for a page: not where its links lead."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.in_style = tag == "style"
        wanted = [given.get(name) for name in LOADING.get(tag, [])]
        if tag == "link" and (given.get("rel") or "") not in ("canonical", "next", "prev"):
            wanted.append(given.get("href"))
        self.found += [value for value in wanted if value]
        self.found += css_urls(given.get("style") or "")

    def handle_data(self, data: str) -> None:
        if self.in_style:
            self.found += css_urls(data)
            self.in_style = False


def css_urls(css: str) -> list[str]:
    imports = re.findall(r"@import\s+[\"']([^\"']+)", css)
    return imports + re.findall(r"url\(\s*[\"']?([^\"')]+)", css)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed; pip install 'calibrant[docs]'")
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_site_loads_nothing_from_anywhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) >= len(list((ROOT / "docs").glob("*.md")))
    for page in pages:
        parser = Assets()
        parser.feed(page.read_text(encoding="utf-8"))
        assert parser.found, f"{page.name} loads no style at all: the parser saw nothing"
        assert [url for url in parser.found if EXTERNAL.match(url)] == [], page.name
    for sheet in site.rglob("*.css"):
        assert [url for url in css_urls(sheet.read_text(encoding="utf-8")) if EXTERNAL.match(url)] == [], (
            sheet.name
        )


def test_an_external_asset_is_seen() -> None:
    parser = Assets()
    parser.feed(
        '<link rel="stylesheet" href="https://a/b.css"><script src="//a/b.js"></script><a href="https://a">a</a>'
    )
    parser.feed(
        '<style>@import "https://a/c.css"; body { background: url(https://a/d.png) }</style><img src="e.png">'
    )
    outside = [url for url in parser.found if EXTERNAL.match(url)]
    assert outside == ["https://a/b.css", "//a/b.js", "https://a/c.css", "https://a/d.png"]


def test_no_marker_is_left_and_every_metric_has_its_section(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        html = (site / page.name).with_suffix(".html").read_text(encoding="utf-8")
        assert not re.search(r"<!-- (registry|references|file)\b", html), page.name
        assert not re.search(r"TeX[0-9a-f]+XeT", html), f"{page.name} shows wrapped TeX"
    metrics = (site / "metrics.html").read_text(encoding="utf-8")
    for entry in describe("metrics"):
        assert f'<h2 id="{entry.name}"' in metrics
    assert not re.search(r"\\(frac|sum|mathrm|hat)\b", metrics), "a formula is shown as raw TeX"


def test_every_reference_is_shown(site: Path) -> None:
    text = hooks.BIBLIOGRAPHY.read_text(encoding="utf-8")
    entries = hooks.bibliography(text)
    assert len(entries) == text.count("\n@") + text.startswith("@")
    html = (site / "references.html").read_text(encoding="utf-8")
    for entry in entries:
        assert {"title", "author", "year"} <= set(entry.fields), entry.key
        assert len(entry.fields) == len(re.findall(r"^  \w+ = ", block(text, entry.key), re.MULTILINE)), (
            entry.key
        )
        assert f'id="{entry.key}"' in html


def block(text: str, key: str) -> str:
    return text[text.index(f"{{{key},") :].split("\n}", 1)[0]


def test_tex_becomes_mathml() -> None:
    shown = hooks.prose(r"so $\mathrm{conf}_b < 1$ holds")
    html = hooks.on_page_content(f"<p>{shown}</p>")
    assert "<msub><mrow><mi>conf</mi></mrow><mi>b</mi></msub>" in html
    assert html.startswith("<p>so <math")
    assert html.endswith("</math> holds</p>")


def test_docstrings_keep_their_signs() -> None:
    shown = hooks.prose("a_b * c < d, `x_y * z`\n\n    code_here * 2")
    assert shown == "a\\_b \\* c \\< d, `x_y * z`\n\n    code_here * 2"
