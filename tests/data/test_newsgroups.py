"""20 Newsgroups from both forms in which it is passed on, what stripping leaves, and what is refused."""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from calibrant.core.errors import InputError, SpecError
from calibrant.core.spec import build
from calibrant.data import Newsgroups, store
from calibrant.data.formats import messages
from calibrant.data.newsgroups import stripped
from calibrant.data.shelf import bring

GROUPS = [f"group.{letter}" for letter in "abcdefghijklmnopqrst"]
Rows = list[tuple[str, str, str, str]]

POST = """From: someone@somewhere
Subject: hats

In article <1@x> Somebody writes:
> Hats are heavy.
| Quite so.
Mine is light.

It is blue.
--
Someone, somewhere
"""


def rows() -> Rows:
    """Three training and two test messages a group, in no particular order; one of them in Latin-1."""
    found = []
    for place, group in enumerate(GROUPS):
        for number in ("9", "101", "20"):
            found.append(
                ("train", group, number, f"From: x\n\nword{place} number{number} caf\xe9 \x85 end\n")
            )
        for number in ("7", "1007"):
            found.append(("test", group, number, f"From: x\n\nword{place} unseen{number}\r\n"))
    return found[::-1]


def folder(at: Path, held: Rows) -> Path:
    for part, group, number, text in held:
        path = at / "20news" / f"20news-bydate-{part}" / group / number
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("latin-1"))
    return at / "20news"


def archive(at: Path, held: Rows) -> Path:
    path = at / "20news-bydate.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        for part, group, number, text in held:
            data = text.encode("latin-1")
            member = tarfile.TarInfo(f"./20news-bydate-{part}/{group}/{number}")
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return path


def lines(at: Path, held: Rows) -> Path:
    path = at / "news.jsonl"
    keys = ("split", "label", "id", "text")
    text = "\n".join(json.dumps(dict(zip(keys, row, strict=True)), ensure_ascii=False) for row in held)
    path.write_bytes(text.encode())
    return path


def packed_lines(at: Path, held: Rows) -> Path:
    path = at / "news.jsonl.xz"
    path.write_bytes(lzma.compress(lines(at, held).read_bytes()))
    return path


@pytest.mark.parametrize("form", [folder, archive, lines, packed_lines])
def test_every_form_is_kept_as_the_same_bytes(form: Callable[[Path, Rows], Path], tmp_path: Path) -> None:
    kept = bring("20newsgroups", form(tmp_path, rows()), tmp_path / "kept")
    assert (kept.train, kept.test, kept.classes) == (60, 40, tuple(GROUPS))
    (tmp_path / "other").mkdir()
    assert (
        kept.sha256 == bring("20newsgroups", lines(tmp_path / "other", rows()[::-1]), tmp_path / "b").sha256
    )


def test_rows_are_in_the_order_of_group_and_number(tmp_path: Path) -> None:
    bring("20newsgroups", archive(tmp_path, rows()), tmp_path)
    piece = Newsgroups(strip=False)
    stock = store.load("20newsgroups", tmp_path)
    train, test = piece.texts(stock, "train"), piece.texts(stock, "test")
    expected = [
        f"From: x\n\nword{place} number{number} caf\xe9 \x85 end\n"
        for place in range(20)
        for number in ("9", "20", "101")
    ]
    assert train == expected
    assert test[:2] == ["From: x\n\nword0 unseen7\r\n", "From: x\n\nword0 unseen1007\r\n"]
    published = piece.load(tmp_path)
    assert published.train.labels.tolist() == [place for place in range(20) for _ in range(3)]
    assert published.train.ids.tolist() == list(range(60))
    assert published.test.ids.tolist() == list(range(60, 100))


def test_the_vocabulary_is_of_the_training_part_alone(tmp_path: Path) -> None:
    bring("20newsgroups", lines(tmp_path, rows()), tmp_path)
    published = build("20newsgroups(vocabulary=30, length=4)", "datasets").load(tmp_path)
    # café and end in 60 texts, number101, number20 and number9 in 20, the twenty wordN in 3: 25 words, 0 and 1
    assert published.shape.size == (4,)
    assert published.shape.vocabulary == 27
    assert published.train.inputs[0].tolist() == [7, 6, 2, 3]  # word0 number9 café end
    assert published.test.inputs[0].tolist() == [7, 1, 0, 0]  # word0, unseen7 is unknown


def test_headers_footer_and_quotes_are_stripped() -> None:
    assert stripped(POST) == "Mine is light.\n\nIt is blue."


@pytest.mark.parametrize(
    ("message", "left"),
    [
        ("Subject: x\n\nOne paragraph alone is no footer.\n", "One paragraph alone is no footer."),
        ("Subject: x\n\nText.\n\nsignature\n", "Text."),
        ("Subject: x\n\nText -- with dashes.\n----\nsignature", "Text -- with dashes."),
        ("Subject: x\n\n", ""),
        ("Subject: no body", ""),
        ("a: b\n\n  > indented quote\n> quote\nmine", "mine"),
        ("a: b\n\nShe wrote:\nmine", "mine"),
    ],
)
def test_what_is_left_of_a_message(message: str, left: str) -> None:
    assert stripped(message) == left


def test_headers_tell_the_group_and_are_there_only_when_asked_for(tmp_path: Path) -> None:
    held = [(part, group, number, f"Newsgroups: {group}\n\nsame") for part, group, number, _ in rows()]
    bring("20newsgroups", lines(tmp_path, held), tmp_path)
    plain = Newsgroups().load(tmp_path)
    full = Newsgroups(strip=False).load(tmp_path)
    assert len(plain.train.inputs.unique(dim=0)) == 1
    assert len(full.train.inputs.unique(dim=0)) == 20


def drop(part: str, group: str) -> Rows:
    return [row for row in rows() if row[:2] != (part, group)]


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (drop("train", "group.c"), "has 19 groups, and 20 Newsgroups has 20"),
        (
            [*rows(), ("test", "group.z", "1", "a\n\nb")],
            "test part has the group group.z, which its training part has not",
        ),
        ([row for row in rows() if row[0] == "train"], "there is no test part in it; import 20news-bydate"),
        ([*rows(), rows()[0]], "the test part has message 1007 of group.t twice|the test part has message"),
        ([*rows(), ("val", "group.a", "1", "a")], "line 101 is no JSON object of split"),
    ],
)
def test_what_is_no_20_newsgroups_is_refused(held: Rows, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        Newsgroups().read(lines(tmp_path, held))


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b"5", b'{"split": "train"}', b"\xff", b"[" * 100_000, b'{"split": []}']
)
def test_a_line_that_is_something_else_is_named(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n" + line)
    with pytest.raises(InputError, match="line 2 is no JSON object"):
        Newsgroups().read(path)


def test_a_text_that_is_no_unicode_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"split": "train", "label": "a", "id": "1", "text": "\\ud800"}')
    with pytest.raises(InputError, match="line 1 is no JSON object"):
        Newsgroups().read(path)


def test_too_much_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packed, plain = packed_lines(tmp_path, rows()), lines(tmp_path, rows())
    whole = archive(tmp_path, rows())
    monkeypatch.setattr(messages, "MOST_BYTES", packed.stat().st_size + 1)
    with pytest.raises(InputError, match=r"unpacks to more than [\d,]+ bytes"):
        Newsgroups().read(packed)
    with pytest.raises(InputError, match=r"is larger than [\d,]+ bytes"):
        Newsgroups().read(plain)
    monkeypatch.setattr(messages, "MOST_BYTES", whole.stat().st_size + 1)
    with pytest.raises(InputError, match=r"unpacks to more than [\d,]+ bytes"):
        Newsgroups().read(whole)


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = packed_lines(tmp_path, rows())
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match="cut short or damaged"):
        Newsgroups().read(path)


def test_missing_data_and_wrong_parameters_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="calibrant data fetch 20newsgroups"):
        Newsgroups().load(tmp_path)
    with pytest.raises(SpecError, match="vocabulary must be from 3"):
        build("20newsgroups(vocabulary=1)", "datasets")
