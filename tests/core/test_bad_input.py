"""Bad input: the table of what is refused, with the one sentence that each case gets."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calibrant.core.errors import InputError
from calibrant.core.predictions import Predictions, TopLabel, load

Array = np.ndarray[Any, Any]
Make = Callable[[Path], None]

N, K = 6, 3
LOGITS = np.sin(np.arange(N * K, dtype=np.float32) ** 2).reshape(N, K)
LABELS = np.array([0, 1, 2, 0, 1, 2])
PROBS = np.exp(LOGITS.astype(np.float64)) / np.exp(LOGITS.astype(np.float64)).sum(1, keepdims=True)
CSV = "label,logit_0,logit_1\n0,1.5,2.5\n1,0.5,-2\n1,3,4\n"


def logits(*at: int, value: float) -> Array:
    changed = LOGITS.copy()
    for row in at:
        changed[row, 1] = value
    return changed


def labels(row: int, value: float, kind: type = int) -> Array:
    changed = LABELS.astype(kind)
    changed[row] = value
    return changed


def npz(**arrays: Any) -> Make:
    return lambda path: np.savez(path, **{"logits": LOGITS, "labels": LABELS, **arrays})


def only(**arrays: Any) -> Make:
    return lambda path: np.savez(path, **arrays)


def probs(values: Any, **more: Any) -> Make:
    return only(probs=values, labels=LABELS, **more)


def pairs(confidence: Any, correct: Any) -> Make:
    return only(confidence=np.asarray(confidence), correct=np.asarray(correct))


def raw(content: bytes) -> Make:
    return lambda path: path.write_bytes(content) and None


def csv(text: str) -> Make:
    return raw(text.encode())


def objects(path: Path) -> None:
    np.savez(path, allow_pickle=True, logits=LOGITS.astype(object), labels=LABELS)


def single(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, LOGITS)


def saved(path: Path) -> bytes:
    Predictions(LOGITS, LABELS, ids=np.arange(N), meta={"split": "test"}).save(path)
    return path.read_bytes()


def truncated(part: float) -> Make:
    def make(path: Path) -> None:
        content = saved(path)
        path.write_bytes(content[: int(len(content) * part)])

    return make


def flipped_bit(path: Path) -> None:
    content = bytearray(saved(path))
    content[content.index(b"logits.npy") + 200] ^= 1
    path.write_bytes(bytes(content))


def other_hash(path: Path) -> None:
    saved(path)
    with np.load(path) as stored:
        np.savez(path, **{**stored, "logits": stored["logits"] + 1})


def entry(**ours: Any) -> Make:
    return npz(meta=np.array(json.dumps({"calibrant": ours})))


def member(name: str, content: bytes, claims: int | None = None) -> Make:
    """A zip archive whose `name` holds any bytes, beside proper labels."""

    def make(path: Path) -> None:
        np.savez(path, labels=LABELS)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(name, content)
            if claims is not None:
                archive.getinfo(name).file_size = claims
                archive.getinfo(name).compress_size = claims

    return make


def npy(header: str, body: bytes = b"") -> bytes:
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body


def duplicate_member(path: Path) -> None:
    np.savez(path, logits=LOGITS, labels=LABELS)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("logits.npy", b"")


def run_directory(path: Path) -> None:
    (path / "predictions").mkdir(parents=True)
    saved(path / "predictions" / "test.npz")


def nothing(path: Path) -> None:
    assert not path.exists()


WANTED = "logits or probs with labels, or confidence with correct, are wanted"
BINARY = "for one probability per row use Predictions.from_binary"
DAMAGED = "the file was changed or damaged, because"
SOURCE = "write it again from its source"
NORMALISE = "divide each row by its sum if that is what you mean"
MEND = "mend the cell or leave the row out"
FILL = "fill it or leave the row out"
FIND = "find what made it, or leave the row out"
RANGE = "outside [0, 1]; give probabilities, not percent"
NEITHER = "there are neither logits nor probs nor confidence"
FIRST = "row 0 (first of 6 such rows)"

TABLE: list[tuple[str, str, Make, str]] = [
    (
        "nan",
        "a.npz",
        npz(logits=logits(2, value=np.nan)),
        f"logits of row 2 has NaN; {FIND}",
    ),
    (
        "nan-rows",
        "a.npz",
        npz(logits=logits(4, 1, 2, value=np.nan)),
        f"logits of row 1 (first of 3 such rows) has NaN; {FIND}",
    ),
    (
        "inf",
        "a.npz",
        npz(logits=logits(3, value=np.inf)),
        f"logits of row 3 has +inf; {FIND}",
    ),
    (
        "inf-half",
        "a.npz",
        npz(logits=logits(3, value=np.inf).astype(np.float16)),
        "logits of row 3 has +inf; find what made it, or compute it in float32, or leave the row out",
    ),
    (
        "masked-label",
        "a.npz",
        npz(logits=logits(1, value=-np.inf)),
        "logits of row 1 masks the true class with -inf; unmask it, or leave the row out",
    ),
    (
        "masked-row",
        "a.npz",
        npz(logits=np.where(np.arange(N) == 5, -np.inf, LOGITS.T).T),
        "logits of row 5 is -inf everywhere, so no class is possible; leave the row out",
    ),
    (
        "integer-logits",
        "a.npz",
        npz(logits=LOGITS.astype(int)),
        "logits is int64, and floating-point numbers are wanted; write logits.astype('float32')",
    ),
    (
        "text-logits",
        "a.npz",
        npz(logits=LOGITS.astype(str)),
        "logits holds text, and numbers are wanted; write logits.astype('float32')",
    ),
    (
        "complex-logits",
        "a.npz",
        npz(logits=LOGITS.astype(complex)),
        "logits holds complex128, and numbers are wanted; write logits.astype('float32')",
    ),
    (
        "flat-logits",
        "a.npz",
        npz(logits=LOGITS[:, 0]),
        f"logits has shape (6,), and shape [N, K] is wanted; {BINARY}, for confidences TopLabel",
    ),
    (
        "deep-logits",
        "a.npz",
        npz(logits=LOGITS[None]),
        "logits has shape (1, 6, 3), and shape [N, K] is wanted; flatten it, for example with logits.reshape(-1, K)",
    ),
    (
        "one-class",
        "a.npz",
        npz(logits=LOGITS[:, :1], labels=LABELS * 0),
        f"logits has shape (6, 1), and at least two classes are needed; {BINARY}",
    ),
    (
        "no-rows",
        "a.npz",
        npz(logits=LOGITS[:0], labels=LABELS[:0]),
        "there are no rows; at least one is needed",
    ),
    (
        "label-too-large",
        "a.npz",
        npz(labels=labels(3, 3)),
        "labels of row 3 is 3, outside 0..2; count the classes from 0",
    ),
    (
        "label-negative",
        "a.npz",
        npz(labels=labels(0, -100)),
        "labels of row 0 is -100, outside 0..2; leave out rows without a label",
    ),
    (
        "label-text",
        "a.npz",
        npz(labels=LABELS.astype(str)),
        "labels holds text, and numbers are wanted; give the column of the true class",
    ),
    (
        "label-float",
        "a.npz",
        npz(labels=LABELS.astype(float)),
        "labels is float64, and integers are wanted; write labels.astype(int)",
    ),
    (
        "label-fraction",
        "a.npz",
        npz(labels=labels(4, 0.5, float)),
        "labels of row 4 is 0.5, and a class number 0..2 is wanted; mend it or leave the row out",
    ),
    (
        "label-bool",
        "a.npz",
        npz(labels=LABELS > 0),
        "labels is bool, and class numbers 0..2 are wanted; write labels.astype(int)",
    ),
    (
        "label-one-hot",
        "a.npz",
        npz(labels=np.eye(K)[LABELS]),
        "labels has shape (6, 3), which looks one-hot; write labels.argmax(1)",
    ),
    (
        "label-column",
        "a.npz",
        npz(labels=LABELS[:, None]),
        "labels has shape (6, 1), and shape [N] is wanted; write labels.reshape(-1)",
    ),
    (
        "lengths",
        "a.npz",
        npz(labels=LABELS[:4]),
        "labels has 4 rows where 6 are wanted; give the same samples in all arrays",
    ),
    (
        "no-labels",
        "a.npz",
        only(logits=LOGITS),
        f"there are logits but no labels; the arrays are logits, and {WANTED}",
    ),
    ("both-spellings", "a.npz", npz(label=LABELS), "there are both labels and label; keep one of them"),
    (
        "ids-twice",
        "a.npz",
        npz(ids=np.array(list("abcdeb"))),
        "the id 'b' of row 5 was there before; give each row its own id",
    ),
    (
        "ids-short",
        "a.npz",
        npz(ids=np.arange(5)),
        "ids has 5 rows where 6 are wanted; give the same samples in all arrays",
    ),
    (
        "ids-float",
        "a.npz",
        npz(ids=np.arange(6.0)),
        "ids is float64 of shape (6,), and integers or texts of shape [N] are wanted; convert it with ids.astype(str)",
    ),
    (
        "meta-no-json",
        "a.npz",
        npz(meta=np.array("{split")),
        f"{DAMAGED} its meta is no JSON; {SOURCE}",
    ),
    (
        "meta-list",
        "a.npz",
        npz(meta=np.array("[1]")),
        "its meta is a JSON list, and an object such as {...} is wanted",
    ),
    (
        "meta-number",
        "a.npz",
        npz(meta=np.array(1)),
        "its meta is no text; store it as np.array(json.dumps(meta))",
    ),
    (
        "probs-doubled",
        "a.npz",
        probs(PROBS * 2),
        "probs of row 0 (first of 5 such rows) leaves [0, 1]; if these are logits, give them as logits",
    ),
    (
        "probs-doubled-small",
        "a.npz",
        probs(np.full((N, K), 2 / 3)),
        f"probs of {FIRST} sums to 2, not to 1 within 0.0001 (float64); {NORMALISE}",
    ),
    (
        "probs-halved",
        "a.npz",
        probs(PROBS * 0.5),
        f"probs of {FIRST} sums to 0.5, not to 1 within 0.0001 (float64); {NORMALISE}",
    ),
    (
        "probs-halved-half",
        "a.npz",
        probs((PROBS * 0.5).astype(np.float16)),
        f"probs of {FIRST} sums to 0.5, not to 1 within 0.005 (float16); {NORMALISE}",
    ),
    (
        "probs-negative",
        "a.npz",
        probs(PROBS + np.array([0.5, -0.5, 0])),
        "probs of row 1 (first of 5 such rows) leaves [0, 1]; if these are logits, give them as logits",
    ),
    (
        "probs-nan",
        "a.npz",
        probs(np.where(np.arange(N) == 2, np.nan, PROBS.T).T),
        f"probs of row 2 has NaN; {FIND}",
    ),
    (
        "probs-are-logits",
        "a.npz",
        probs(LOGITS),
        f"probs of {FIRST} leaves [0, 1]; if these are logits, give them as logits",
    ),
    (
        "probs-other-than-logits",
        "a.npz",
        npz(probs=PROBS[::-1].copy()),
        f"probs of {FIRST} is not the softmax of its logits; keep the one that you mean",
    ),
    (
        "probs-other-shape",
        "a.npz",
        npz(probs=PROBS[:, :2]),
        "probs has shape (6, 2), logits has (6, 3); give them for the same rows and classes",
    ),
    (
        "confidence-alone",
        "a.npz",
        only(confidence=PROBS[:, 0]),
        f"there is confidence but no correct; the arrays are confidence, and {WANTED}",
    ),
    (
        "confidence-percent",
        "a.npz",
        pairs([50.0, 90.0], [0, 1]),
        f"confidence of row 0 (first of 2 such rows) is 50, {RANGE}",
    ),
    (
        "confidence-nan",
        "a.npz",
        pairs([0.5, np.nan], [0, 1]),
        f"confidence of row 1 is nan, {RANGE}",
    ),
    (
        "confidence-empty",
        "a.npz",
        pairs(np.zeros(0), np.zeros(0, int)),
        "there are no rows; at least one is needed",
    ),
    ("correct-two", "a.npz", pairs([0.5, 0.9], [0, 2]), "correct of row 1 is 2; it is 0 or 1 for each row"),
    (
        "correct-float",
        "a.npz",
        pairs([0.5, 0.9], [0.0, 1.0]),
        "correct holds floats, and 0 and 1 or bool are wanted; write correct.astype(int)",
    ),
    (
        "correct-short",
        "a.npz",
        pairs([0.5, 0.9], [1]),
        "correct has 1 row where 2 are wanted; give the same samples in all arrays",
    ),
    (
        "calibrated-without-predicted",
        "a.npz",
        npz(confidence=PROBS[:, 0]),
        "there is confidence but no predicted; add the predicted classes or rename it",
    ),
    (
        "calibrated-without-confidence",
        "a.npz",
        npz(predicted=LABELS),
        "there is predicted but no confidence; a top-label calibrator gives both",
    ),
    (
        "predicted-out-of-range",
        "a.npz",
        npz(predicted=LABELS + 1, confidence=PROBS[:, 0]),
        "predicted of row 2 (first of 2 such rows) is 3, outside 0..2; count the classes from 0",
    ),
    (
        "other-arrays",
        "a.npz",
        only(x=LOGITS, y=LABELS),
        f"{NEITHER}; the arrays are x, y, and {WANTED}",
    ),
    (
        "objects",
        "a.npz",
        objects,
        "logits.npy holds Python objects, which are never loaded; save it as numbers or texts",
    ),
    ("missing", "a.npz", nothing, "there is no such file; check the path"),
    ("empty", "a.npz", raw(b""), "the file is empty (0 bytes); write it again"),
    ("directory", "a.npz", Path.mkdir, "this is a directory; give one file: .npz, .parquet or .csv"),
    ("run-directory", "run", run_directory, "this is a directory; did you mean DIR/run/predictions/test.npz"),
    (
        "pickle",
        "a.pkl",
        raw(b"\x80\x04."),
        "a pickle can run code and is never loaded; save with np.savez(path, logits=..., labels=...)",
    ),
    (
        "npy",
        "a.npz",
        single,
        "this is one array in npy format; save all with np.savez(path, logits=..., labels=...)",
    ),
    (
        "extension",
        "a.h5",
        raw(b"x"),
        "the extension '.h5' is none of ours; .npz, .parquet and .csv are read and written",
    ),
    (
        "no-extension",
        "predictions",
        raw(b"x"),
        "the name has no extension; .npz, .parquet and .csv are read and written",
    ),
    (
        "no-zip",
        "a.npz",
        raw(b"label,logit_0"),
        "this is no npz archive; write it with np.savez(path, logits=..., labels=...)",
    ),
    ("cut-half", "a.npz", truncated(0.5), "the end of the file is missing; copy or write it again"),
    ("cut-end", "a.npz", truncated(0.99), "the end of the file is missing; copy or write it again"),
    (
        "flipped-bit",
        "a.npz",
        flipped_bit,
        "the file is cut short or damaged (Bad CRC-32 for file 'logits.npy'); write it again",
    ),
    (
        "other-hash",
        "a.npz",
        other_hash,
        f"{DAMAGED} its content does not have the hash that it was written with; {SOURCE}",
    ),
    (
        "newer-schema",
        "a.npz",
        entry(schema=2, sha256="0"),
        "written by a newer Calibrant (schema 2, this one reads up to 1); upgrade with pip install -U calibrant",
    ),
    (
        "entry-incomplete",
        "a.npz",
        entry(schema=1),
        f"{DAMAGED} the 'calibrant' entry of its meta is incomplete; {SOURCE}",
    ),
    (
        "member-claims-more",
        "a.npz",
        member("logits.npy", b"x", claims=1 << 40),
        "logits.npy claims 1099511627776 bytes, more than the file can hold; it is damaged, write it again",
    ),
    (
        "member-no-npy",
        "a.npz",
        member("logits.npy", b"x" * 100),
        "logits.npy is no array in npy format; write the file with np.savez",
    ),
    (
        "header-claims-more",
        "a.npz",
        member("logits.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (9999999, 3)}")),
        "logits.npy has another size than its header says; the file is damaged, write it again",
    ),
    (
        "header-code",
        "a.npz",
        member("logits.npy", npy("__import__('os').system('true')")),
        "logits.npy is no array in npy format; write the file with np.savez",
    ),
    ("member-twice", "a.npz", duplicate_member, "it holds logits twice; write it again"),
    (
        "csv-text",
        "a.csv",
        csv(CSV.replace("0.5", "abc")),
        f"column logit_0 of row 1 (line 3) has 'abc', and a number is wanted; {MEND}",
    ),
    (
        "csv-empty-cell",
        "a.csv",
        csv(CSV.replace("2.5", "")),
        f"column logit_1 of row 0 (line 2) is empty, and a number is wanted; {MEND}",
    ),
    (
        "csv-underscore",
        "a.csv",
        csv(CSV.replace("2.5", "2_5")),
        f"column logit_1 of row 0 (line 2) has '2_5', and a number is wanted; {MEND}",
    ),
    (
        "csv-short-row",
        "a.csv",
        csv(CSV.replace("0.5,-2", "0.5")),
        "row 1 (line 3) has 2 cells where the header has 3 cells; mend the row",
    ),
    (
        "csv-long-row",
        "a.csv",
        csv(CSV.replace("3,4", "3,4,5")),
        "row 2 (line 4) has 4 cells where the header has 3 cells; mend the row",
    ),
    (
        "csv-blank-line",
        "a.csv",
        csv(CSV.replace("\n1,3", "\n\n1,3")),
        "row 2 (line 4) is empty where the header has 3 cells; mend the row",
    ),
    (
        "csv-nan",
        "a.csv",
        csv(CSV.replace("0.5", "nan")),
        f"logits of row 1 (line 3) has NaN; {FIND}",
    ),
    (
        "csv-label-float",
        "a.csv",
        csv(CSV.replace("\n1,3", "\n1.0,3")),
        f"column label of row 2 (line 4) has '1.0', and a whole number from 0 up is wanted; {MEND}",
    ),
    (
        "csv-label-range",
        "a.csv",
        csv(CSV.replace("\n1,3", "\n2,3")),
        "labels of row 2 (line 4) is 2, outside 0..1; count the classes from 0",
    ),
    (
        "csv-gap",
        "a.csv",
        csv(CSV.replace("logit_1", "logit_2")),
        "column logit_1 is missing; logit_0 to logit_2 are wanted",
    ),
    (
        "csv-one-class",
        "a.csv",
        csv("label,logit_0\n0,1\n"),
        f"logits has shape (1, 1), and at least two classes are needed; {BINARY}",
    ),
    (
        "csv-no-label",
        "a.csv",
        csv(CSV.replace("label", "target")),
        f"there are logits but no labels; the columns are logit_0, logit_1, target, and {WANTED}",
    ),
    (
        "csv-twice",
        "a.csv",
        csv(CSV.replace("logit_1", "label")),
        "there are two columns label; keep one of them",
    ),
    (
        "csv-no-header",
        "a.csv",
        csv("0,1.5,2.5\n1,2.5,3.5\n"),
        f"{NEITHER}; the columns are 0, 1.5, 2.5, and {WANTED}",
    ),
    (
        "csv-semicolons",
        "a.csv",
        csv(CSV.replace(",", ";")),
        "its cells are separated by ';'; save it with commas",
    ),
    (
        "csv-header-only",
        "a.csv",
        csv("label,logit_0,logit_1\n"),
        "there are no rows; at least one is needed below the header",
    ),
    (
        "csv-lists",
        "a.csv",
        csv('label,logits\n0,"[1, 2]"\n'),
        "column logits would hold lists, which csv cannot; write logit_0, logit_1 and so on",
    ),
    (
        "csv-latin",
        "a.csv",
        raw(CSV.encode() + b"\xe9"),
        "this is no text in utf-8; save it as csv with utf-8 encoding",
    ),
    (
        "csv-comment",
        "a.csv",
        csv("# made by hand\n" + CSV),
        "its first line is a comment that is not ours; leave it out",
    ),
    (
        "csv-quote",
        "a.csv",
        csv(CSV + '1,"3,4\n'),
        "this is no csv file (unexpected end of data); save it with commas, in utf-8",
    ),
    (
        "csv-correct",
        "a.csv",
        csv("conf,correct\n0.5,yes\n"),
        f"column correct of row 0 (line 2) has 'yes', and 0 or 1 is wanted; {MEND}",
    ),
    (
        "csv-percent",
        "a.csv",
        csv("conf,correct\n0.5,1\n90,0\n"),
        f"confidence of row 1 (line 3) is 90, {RANGE}",
    ),
    (
        "csv-probs",
        "a.csv",
        csv("label,prob_0,prob_1\n0,0.5,0.4\n"),
        f"probs of row 0 (line 2) sums to 0.9, not to 1 within 0.0001 (float64); {NORMALISE}",
    ),
]


def parquet(**columns: Any) -> Make:
    """A table of `label`, `logit_0` and `logit_1`, and what is given instead or besides; None drops a column."""

    def make(path: Path) -> None:
        arrow = pytest.importorskip("pyarrow", reason="reading parquet needs pyarrow")
        writer = importlib.import_module("pyarrow.parquet")
        proper = {"label": [0, 1, 1], "logit_0": [1.5, 0.5, 3.0], "logit_1": [2.5, -2.0, 4.0]}
        held = {name: values for name, values in {**proper, **columns}.items() if values is not None}
        writer.write_table(arrow.table(held), path)

    return make


def flipped_parquet(path: Path) -> None:
    pytest.importorskip("pyarrow", reason="reading parquet needs pyarrow")
    content = bytearray(saved(path))
    content[content.index(LOGITS[:, 0].tobytes()) + 2] ^= 1
    path.write_bytes(bytes(content))


LISTS = {"logit_0": None, "logit_1": None}
TABLE += [
    (
        "parquet-null",
        "a.parquet",
        parquet(logit_1=[1.0, None, None]),
        f"column logit_1 is empty (null) in row 1; {FILL}",
    ),
    (
        "parquet-null-label",
        "a.parquet",
        parquet(label=[0, 1, None]),
        f"column label is empty (null) in row 2; {FILL}",
    ),
    (
        "parquet-text",
        "a.parquet",
        parquet(logit_1=["1", "2", "3"]),
        "column logit_1 holds string, and numbers are wanted; convert it",
    ),
    (
        "parquet-integers",
        "a.parquet",
        parquet(logit_0=[1, 2, 3], logit_1=[1, 2, 3]),
        "logits is int64, and floating-point numbers are wanted; write logits.astype('float32')",
    ),
    (
        "parquet-nan",
        "a.parquet",
        parquet(logit_1=[1.0, float("nan"), 2.0]),
        f"logits of row 1 has NaN; {FIND}",
    ),
    (
        "parquet-gap",
        "a.parquet",
        parquet(logit_3=[1.0, 2.0, 3.0]),
        "column logit_2 is missing; logit_0 to logit_3 are wanted",
    ),
    (
        "parquet-no-label",
        "a.parquet",
        parquet(label=None),
        f"there are logits but no labels; the columns are logit_0, logit_1, and {WANTED}",
    ),
    (
        "parquet-label-float",
        "a.parquet",
        parquet(label=[0.0, 1.0, 1.0]),
        "labels is float64, and integers are wanted; write labels.astype(int)",
    ),
    (
        "parquet-ids",
        "a.parquet",
        parquet(id=[0.5, 1.5, 2.5]),
        "column id holds double, and integers or texts are wanted; convert it",
    ),
    (
        "parquet-ragged",
        "a.parquet",
        parquet(**LISTS, logits=[[1.0, 2.0], [1.0], [2.0, 3.0]]),
        "logits of row 1 has 1 numbers where 2 are wanted; mend the row",
    ),
    (
        "parquet-null-in-list",
        "a.parquet",
        parquet(**LISTS, logits=[[1.0, 2.0], [1.0, None], [2.0, 3.0]]),
        f"column logits has an empty (null) entry in row 1; {FILL}",
    ),
    (
        "parquet-lists-and-columns",
        "a.parquet",
        parquet(logits=[[1.0, 2.0]] * 3),
        "there are both logits and logit_0..; keep one of them",
    ),
    (
        "parquet-no-rows",
        "a.parquet",
        parquet(label=np.zeros(0, int), logit_0=np.zeros(0), logit_1=np.zeros(0)),
        "there are no rows; at least one is needed",
    ),
    (
        "parquet-flipped-bit",
        "a.parquet",
        flipped_parquet,
        "this is no parquet file, or a damaged one; write it again",
    ),
]


def names(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def one_sentence(message: str) -> bool:
    return "\n" not in message and ". " not in message and not message.endswith(".") and len(message) < 400


TABLE_IDS = [case[0] for case in TABLE]


def test_table_is_complete() -> None:
    assert len(set(TABLE_IDS)) == len(TABLE) >= 45


@pytest.mark.parametrize(("case", "name", "make", "message"), TABLE, ids=TABLE_IDS)
def test_file(tmp_path: Path, case: str, name: str, make: Make, message: str) -> None:
    path = tmp_path / name
    make(path)
    before = names(tmp_path)
    with pytest.raises(InputError) as caught:
        load(path)
    text = str(caught.value)
    assert text == f"{path}: {message.replace('DIR', str(tmp_path))}"
    assert one_sentence(text)
    assert names(tmp_path) == before


ARRAYS: list[tuple[str, Callable[[], object], str]] = [
    ("none", lambda: Predictions(None, LABELS), "logits is NoneType, and an array is wanted"),
    ("number", lambda: Predictions(LOGITS, 3), "labels is int, and an array is wanted"),
    (
        "ragged",
        lambda: Predictions([[1.0, 2.0], [3.0]], [0, 1]),
        "logits has rows of different lengths; give one number per row and class",
    ),
    (
        "sparse",
        lambda: Predictions(torch.eye(3).to_sparse(), [0, 1, 2]),
        "logits is a torch.sparse_coo tensor, and a dense one is wanted; write logits.to_dense()",
    ),
    (
        "float8",
        lambda: Predictions(torch.eye(3).to(torch.float8_e4m3fn), [0, 1, 2]),
        "logits is torch.float8_e4m3fn, and 16, 32 or 64 bit floats are wanted",
    ),
    (
        "bool-tensor",
        lambda: Predictions(LOGITS, torch.from_numpy(LABELS) > 0),
        "labels is bool, and class numbers 0..2 are wanted; write labels.astype(int)",
    ),
    (
        "bfloat16-nan",
        lambda: Predictions(torch.from_numpy(logits(1, value=np.nan)).bfloat16(), LABELS),
        "logits of row 1 has NaN; find what made it, or leave the row out",
    ),
    (
        "unsigned",
        lambda: Predictions(LOGITS, np.full(N, 2**64 - 100, np.uint64)),
        "labels has 18446744073709551516, which is too large; class numbers count from 0",
    ),
    (
        "confidence-alone",
        lambda: Predictions(LOGITS, LABELS, confidence=PROBS[:, 0]),
        "confidence and predicted go together; give both or neither",
    ),
    (
        "binary-percent",
        lambda: Predictions.from_binary([0.5, 30.0], [0, 1]),
        "prob_of_class_1 of row 1 is 30, outside [0, 1]; give probabilities, not percent",
    ),
    (
        "binary-label",
        lambda: Predictions.from_binary([0.5, 0.3], [1, 2]),
        "labels of row 1 is 2, outside 0..1; count the classes from 0",
    ),
    (
        "binary-matrix",
        lambda: Predictions.from_binary(PROBS, LABELS),
        (
            "prob_of_class_1 has shape (6, 3), and shape [N] is wanted;"
            " flatten it, for example with prob_of_class_1.reshape(-1)"
        ),
    ),
    (
        "probs-one-class",
        lambda: Predictions.from_probs(PROBS[:, :1], LABELS * 0),
        (
            "probs has shape (6, 1), and at least two classes are needed;"
            " for one probability per row use Predictions.from_binary"
        ),
    ),
    (
        "pairs-lengths",
        lambda: TopLabel([0.5, 0.6], [True]),
        "correct has 1 row where 2 are wanted; give the same samples in all arrays",
    ),
    (
        "ids-mixed",
        lambda: Predictions(LOGITS, LABELS, ids=np.array([1, "a", None, 2, 3, 4], dtype=object)),
        "ids is object of shape (6,), and integers or texts of shape [N] are wanted; convert it with ids.astype(str)",
    ),
    (
        "meta-nan",
        lambda: Predictions(LOGITS, LABELS, meta={"loss": float("nan")}),
        (
            "meta cannot be written as JSON (Out of range float values are not JSON compliant);"
            " use texts, numbers, lists and mappings"
        ),
    ),
    (
        "meta-array",
        lambda: Predictions(LOGITS, LABELS, meta={"weights": LOGITS}),
        "meta cannot be written as JSON (ndarray is no JSON); use texts, numbers, lists and mappings",
    ),
    (
        "meta-key",
        lambda: Predictions(LOGITS, LABELS, meta={"a": [{1: 2}]}),
        "meta has a key that is no text; JSON knows only text keys, so write str(key)",
    ),
    (
        "meta-reserved",
        lambda: Predictions(LOGITS, LABELS, meta={"calibrant": {}}),
        "meta has the key 'calibrant', which is kept for the file's hash; choose another",
    ),
    (
        "meta-text",
        lambda: Predictions(LOGITS, LABELS, meta="test"),  # type: ignore[arg-type]
        "meta is str, and a mapping such as {'split': 'test'} is wanted",
    ),
]


@pytest.mark.parametrize(("case", "make", "message"), ARRAYS, ids=[case[0] for case in ARRAYS])
def test_arrays(case: str, make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert str(caught.value) == message
    assert one_sentence(message), case


WRITING: list[tuple[str, str, Callable[[Path], None], str]] = [
    (
        "no-directory",
        "no/a.npz",
        nothing,
        "cannot write, because there is no directory DIR/no; make it first",
    ),
    ("directory", "a.npz", Path.mkdir, "this is a directory; give the name of a file to write"),
    (
        "extension",
        "a.h5",
        nothing,
        "the extension '.h5' is none of ours; .npz, .parquet and .csv are read and written",
    ),
]


@pytest.mark.parametrize(("case", "name", "make", "message"), WRITING, ids=[case[0] for case in WRITING])
def test_writing(tmp_path: Path, case: str, name: str, make: Make, message: str) -> None:
    path = tmp_path / name
    make(path)
    before = names(tmp_path)
    with pytest.raises(InputError) as caught:
        Predictions(LOGITS, LABELS).save(path)
    assert str(caught.value) == f"{path}: {message.replace('DIR', str(tmp_path))}", case
    assert names(tmp_path) == before


def test_beyond_float32_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="logits has numbers beyond float32, in which they are written"):
        Predictions(LOGITS.astype(np.float64) * 1e300, LABELS).save(tmp_path / "a.npz")
    assert names(tmp_path) == []


def test_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    old = saved(path)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError) as caught:
        Predictions(LOGITS + 1, LABELS).save(path)
    assert str(caught.value) == f"{path}: cannot write this file: No space left on device"
    assert path.read_bytes() == old
    assert names(tmp_path) == ["a.npz"]


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    saved(path)
    path.chmod(0)
    if os.access(path, os.R_OK):  # root may read everything, so the system's answer is given for it

        def refuse(self: Path, mode: str = "r") -> None:
            raise PermissionError(13, "Permission denied", str(self))

        monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(caught.value) == f"{path}: no permission to read this file; allow it with chmod +r"


def test_kinds_point_to_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    TopLabel([0.5], [1]).save(path)
    with pytest.raises(
        InputError, match=re.escape("it holds (confidence, correct) pairs; read it with TopLabel.load")
    ):
        Predictions.load(path)
    Predictions(LOGITS, LABELS).save(path)
    with pytest.raises(
        InputError, match=re.escape("it holds logits or probabilities; read it with Predictions.load")
    ):
        TopLabel.load(path)


def test_odd_names_stay_on_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a\nb.npz"
    path.write_bytes(b"")
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(caught.value).endswith("a\\nb.npz: the file is empty (0 bytes); write it again")


@pytest.mark.parametrize(("case", "name", "make", "message"), TABLE, ids=TABLE_IDS)
def test_command_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: str,
    name: str,
    make: Make,
    message: str,
) -> None:
    """The whole table through the very function that the console script calls."""
    app = importlib.import_module("calibrant.cli").app
    path = tmp_path / name
    make(path)
    before = names(tmp_path)
    monkeypatch.setattr(sys, "argv", ["calibrant", "evaluate", str(path), "--json"])
    with pytest.raises(SystemExit) as caught:
        app()
    shown = capsys.readouterr()
    assert caught.value.code == 2, case
    assert shown.out == ""
    assert "".join(f"{path}: {message.replace('DIR', str(tmp_path))}".split()) in "".join(shown.err.split())
    assert "Traceback" not in shown.err
    assert names(tmp_path) == before


@pytest.mark.parametrize("case", ["nan", "missing", "cut-half", "csv-text", "objects"])
def test_command(tmp_path: Path, case: str) -> None:
    """A handful as a person would type it, in a process of its own."""
    _, name, make, message = next(row for row in TABLE if row[0] == case)
    path = tmp_path / name
    make(path)
    done = subprocess.run(
        [sys.executable, "-m", "calibrant", "evaluate", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "".join(f"{path}: {message}".split()) in "".join(done.stderr.split())
    assert "Traceback" not in done.stderr
