"""Predictions on disk: what is written comes back, what others wrote is read, what was damaged is noticed."""

from __future__ import annotations

import importlib
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.core import npz
from calibrant.core.errors import InputError
from calibrant.core.predictions import Predictions, TopLabel, load

MUTANTS = 200
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(20, 4)).astype(np.float32)
LABELS = RNG.integers(0, 4, 20)
PROBS = np.exp(LOGITS.astype(float)) / np.exp(LOGITS.astype(float)).sum(1, keepdims=True)
FORMATS = [".npz", ".parquet", ".csv"]


@pytest.fixture(params=FORMATS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == ".parquet":
        pytest.importorskip("pyarrow", reason="parquet files need pyarrow")
    return tmp_path / f"predictions{request.param}"


def content(found: Predictions | TopLabel) -> dict[str, Any]:
    """Everything but the source, comparable bit for bit: type, shape and bytes."""
    shown: dict[str, Any] = {}
    for name, value in vars(found).items():
        if isinstance(value, torch.Tensor):
            value = value.view(torch.int16) if value.dtype == torch.bfloat16 else value
            value = value.numpy()
        if isinstance(value, np.ndarray):
            value = (value.dtype.str, value.shape, value.tobytes())
        shown[name] = value
    return {name: value for name, value in shown.items() if name not in ("source", "sha256")}


def full() -> Predictions:
    ids = [f'sample "{i}", a\nb é' for i in range(20)]
    meta = {"split": "test", "model": {"name": "resné", "seed": 3}, "rate": 0.1}
    return Predictions(LOGITS, LABELS, ids=ids, meta=meta, confidence=PROBS.max(1), predicted=PROBS.argmax(1))


finite = {
    torch.float16: st.floats(-60000, 60000, width=16),
    torch.bfloat16: st.floats(-(2.0**60), 2.0**60, width=32),
    torch.float32: st.floats(-(2.0**120), 2.0**120, width=32),
    torch.float64: st.floats(-1e30, 1e30),
}
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


@st.composite
def predictions(draw: st.DrawFn) -> Predictions:
    dtype = draw(st.sampled_from(list(finite)))
    n, k = draw(st.integers(1, 6)), draw(st.integers(2, 4))
    row = st.lists(finite[dtype], min_size=k, max_size=k)
    logits = torch.tensor(draw(st.lists(row, min_size=n, max_size=n)), dtype=torch.float64).to(dtype)
    labels = draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n))
    kinds = st.sampled_from([texts, st.integers(-(2**63), 2**63 - 1)])
    ids = draw(st.none() | kinds.flatmap(lambda kind: st.lists(kind, min_size=n, max_size=n, unique=True)))
    meta = draw(
        st.dictionaries(
            st.text().filter(lambda key: key not in ("calibrant", "from")), json_values, max_size=3
        )
    )
    shares = st.lists(st.floats(0, 1), min_size=n, max_size=n)
    confidence = draw(st.none() | shares)
    ids = ids if ids is None else np.array(ids)
    return Predictions(
        logits,
        labels,
        ids=ids,
        meta=meta,
        confidence=confidence,
        predicted=None if confidence is None else labels,
    )


def written(value: torch.Tensor, extension: str, *, logits: bool) -> torch.Tensor:
    """What the rule says of a tensor that was made in memory: logits as float32, halves widened, text as float64."""
    if extension == ".csv":
        return value.double()
    return value.float() if logits or value.dtype in (torch.float16, torch.bfloat16) else value


@pytest.mark.parametrize("extension", FORMATS)
@settings(deadline=None, derandomize=True, max_examples=60)
@given(predictions())
def test_round_trip(extension: str, original: Predictions) -> None:
    if extension == ".parquet":
        pytest.importorskip("pyarrow", reason="parquet files need pyarrow")
    expected = Predictions(
        written(original.logits, extension, logits=True),
        original.labels,
        ids=original.ids,
        meta=original.meta,
        confidence=None
        if original.confidence is None
        else written(original.confidence, extension, logits=False),
        predicted=original.predicted,
    )
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"a{extension}"
        original.save(path)
        found = Predictions.load(path)
        assert content(found) == content(expected)
        assert found.sha256 == expected.sha256
        assert found.source == str(path)
        first = path.read_bytes()
        found.save(path)  # what was read is written as it was read, to the byte
        assert path.read_bytes() == first or extension == ".parquet"
        assert content(Predictions.load(path)) == content(found)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=9), st.sampled_from(FORMATS))
def test_round_trip_of_pairs(rows: list[tuple[float, bool]], extension: str) -> None:
    original = TopLabel(
        [c for c, _ in rows], [a for _, a in rows], ids=np.arange(len(rows)), meta={"run": "x"}
    )
    if extension == ".parquet":
        pytest.importorskip("pyarrow", reason="parquet files need pyarrow")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"a{extension}"
        original.save(path)
        assert content(TopLabel.load(path)) == content(original)
        assert isinstance(load(path), TopLabel)


def test_everything_comes_back(path: Path) -> None:
    original = full()
    original.save(path)
    found = Predictions.load(path)
    if path.suffix == ".csv":
        original = Predictions(
            original.logits.double(),
            original.labels,
            ids=original.ids,
            meta=original.meta,
            confidence=original.confidence,
            predicted=original.predicted,
        )
    assert content(found) == content(original)


def test_float64_that_is_read_stays_float64(path: Path) -> None:
    np.savez(path.with_suffix(".npz"), logits=LOGITS.astype(np.float64) / 3, labels=LABELS)
    read = Predictions.load(path.with_suffix(".npz"))
    read.save(path)
    assert content(Predictions.load(path)) == content(read)
    assert read.logits.dtype == torch.float64


def test_made_in_memory_is_written_as_float32(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        logits = torch.from_numpy(LOGITS).to(dtype)
        Predictions(logits, LABELS).save(path)
        with np.load(path) as stored:
            assert stored["logits"].dtype == np.float32
            assert np.array_equal(stored["logits"], logits.float().numpy())
            assert stored["labels"].dtype == np.int64


def test_exact_probabilities_come_back(path: Path) -> None:
    edges = np.arange(8, 16) / 15
    probs = np.stack([edges, 1 - edges], 1)
    original = Predictions.from_probs(probs, [1, 0] * 4, meta={"split": "val"})
    original.save(path)
    found = Predictions.load(path)
    assert found.probs is not None
    assert found.probs.numpy().tobytes() == probs.tobytes()
    assert found.meta == {"split": "val", "from": "probs"}
    assert found.logits[7, 1] == -torch.inf


def test_true_class_of_probability_zero_comes_back(path: Path) -> None:
    Predictions.from_probs([[1.0, 0.0], [0.5, 0.5]], [1, 0]).save(path)
    assert Predictions.load(path).logits.tolist()[0] == [0.0, -np.inf]


def test_masks_come_back(path: Path) -> None:
    Predictions([[0.0, -np.inf, 1.5], [2.0, 1.0, 0.0]], [2, 1]).save(path)
    assert Predictions.load(path).logits.tolist() == [[0.0, -np.inf, 1.5], [2.0, 1.0, 0.0]]


def test_same_content_same_bytes(path: Path) -> None:
    full().save(path)
    first = path.read_bytes()
    full().save(path)
    assert path.read_bytes() == first


def test_numpy_reads_what_we_write(tmp_path: Path) -> None:
    full().save(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as stored:
        assert sorted(stored) == ["confidence", "ids", "labels", "logits", "meta", "predicted"]
        assert np.array_equal(stored["logits"], LOGITS)
        assert json.loads(stored["meta"].item())["split"] == "test"


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("kind", ["f2", "f4", "f8", ">f4"])
def test_three_lines_of_numpy(tmp_path: Path, save: Any, kind: str) -> None:
    save(
        tmp_path / "a.npz",
        logits=np.asfortranarray(LOGITS.astype(kind)),
        label=LABELS.astype(np.int32),
        other=1,
    )
    found = Predictions.load(tmp_path / "a.npz")
    assert np.array_equal(found.logits.numpy(), LOGITS.astype(kind))
    assert found.labels.tolist() == LABELS.tolist()
    assert found.logits.dtype == {"2": torch.float16, "4": torch.float32, "8": torch.float64}[kind[-1]]


def test_logits_come_before_pairs(tmp_path: Path) -> None:
    """As in files that hold logits, exact probabilities and what follows from them."""
    pairs = {"conf": PROBS.max(1), "correct": (PROBS.argmax(1) == LABELS).astype(int)}
    np.savez(tmp_path / "a.npz", logits=np.log(PROBS), labels=LABELS, probs=PROBS, **pairs)
    found = load(tmp_path / "a.npz")
    assert isinstance(found, Predictions)
    assert found.probs is not None
    assert np.array_equal(found.probs.numpy(), PROBS)
    assert found.confidence is None
    np.savez(tmp_path / "b.npz", **pairs)
    assert isinstance(load(tmp_path / "b.npz"), TopLabel)


def test_probs_and_labels(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz", probs=PROBS, labels=LABELS, ids=np.arange(20), meta=np.array('{"split": "test"}')
    )
    found = Predictions.load(tmp_path / "a.npz")
    assert np.array_equal(found.logits.numpy(), torch.from_numpy(PROBS).log().numpy())
    assert found.meta == {"split": "test", "from": "probs"}


def test_csv_that_others_write(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    text = 'id,prob_1,label,prob_0,note\r\n7,0.25,0,0.75,"a, b"\r\n3,1e0,1,0,\r\n\r\n'
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    found = Predictions.load(path)
    assert found.probs is not None
    assert found.ids is not None
    assert found.probs.tolist() == [[0.75, 0.25], [0.0, 1.0]]
    assert found.ids.tolist() == [7, 3]
    path.write_text("conf,correct\n0.5,True\n0.75,false\n1,0", encoding="utf-8")
    pairs = TopLabel.load(path)
    assert pairs.confidence.tolist() == [0.5, 0.75, 1.0]
    assert pairs.correct.tolist() == [True, False, False]


@pytest.mark.parametrize("rows", [1, 16384, 16385, 40000])
def test_tables_longer_than_a_batch(tmp_path: Path, rows: int) -> None:
    pytest.importorskip("pyarrow", reason="parquet files need pyarrow")
    logits = RNG.normal(size=(rows, 3)).astype(np.float32)
    original = Predictions(logits, RNG.integers(0, 3, rows), ids=[f"s{i}" for i in range(rows)])
    original.save(tmp_path / "a.parquet")
    assert content(Predictions.load(tmp_path / "a.parquet")) == content(original)
    original.save(tmp_path / "a.csv")
    found = Predictions.load(tmp_path / "a.csv")
    assert np.array_equal(found.logits.numpy(), logits)
    assert found.ids is not None
    assert found.ids.tolist()[-1] == f"s{rows - 1}"


@pytest.mark.parametrize("kind", ["float", "double", "halffloat"])
@pytest.mark.parametrize("shape", ["columns", "list", "fixed"])
def test_parquet_that_others_write(tmp_path: Path, kind: str, shape: str) -> None:
    arrow = pytest.importorskip("pyarrow", reason="parquet files need pyarrow")
    writer = importlib.import_module("pyarrow.parquet")
    numpy_kind = {"float": np.float32, "double": np.float64, "halffloat": np.float16}[kind]
    logits = LOGITS.astype(numpy_kind)
    of = {"float": arrow.float32(), "double": arrow.float64(), "halffloat": arrow.float16()}[kind]
    columns: dict[str, Any] = {"label": arrow.array(LABELS.astype(np.int16)), "note": arrow.array(["x"] * 20)}
    if shape == "columns":
        columns |= {f"logit_{k}": arrow.array(logits[:, k]) for k in (3, 1, 0, 2)}
    else:
        flat = arrow.list_(of, 4) if shape == "fixed" else arrow.list_(of)
        columns["logits"] = arrow.array(list(logits), type=flat)
    columns["id"] = arrow.array([f"n{i}" for i in range(20)]).dictionary_encode()
    writer.write_table(arrow.table(columns), tmp_path / "a.parquet", row_group_size=7)
    found = Predictions.load(tmp_path / "a.parquet")
    assert found.logits.numpy().dtype == numpy_kind
    assert np.array_equal(found.logits.numpy(), logits)
    assert found.labels.tolist() == LABELS.tolist()
    assert found.ids is not None
    assert found.ids.tolist() == [f"n{i}" for i in range(20)]


def test_parquet_of_mixed_types_is_as_wide_as_the_widest(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="parquet files need pyarrow")
    columns = {"label": [0, 1], "logit_0": arrow.array([0.1, 0.2], arrow.float32()), "logit_1": [0.1, 0.3]}
    importlib.import_module("pyarrow.parquet").write_table(arrow.table(columns), tmp_path / "a.parquet")
    assert Predictions.load(tmp_path / "a.parquet").logits[:, 1].tolist() == [0.1, 0.3]


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "a.parquet"
    with pytest.raises(InputError) as caught:
        full().save(path)
    expected = f"{path}: parquet needs pyarrow, which is not installed; pip install 'calibrant[parquet]'"
    assert str(caught.value) == expected
    assert not path.exists()


def test_reading_needs_no_more_than_torch_and_numpy() -> None:
    program = "import sys, calibrant.core.predictions; print(sorted({'pyarrow', 'scipy', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def mutants(whole: bytes, seed: int) -> list[bytes]:
    """Files with one byte changed: anywhere, and everywhere near the end, where the directories are."""
    generator = random.Random(seed)
    places = [generator.randrange(len(whole)) for _ in range(MUTANTS)] + list(
        range(len(whole) - 150, len(whole))
    )
    made = []
    for place in places:
        changed = bytearray(whole)
        changed[place] ^= generator.choice([1, 32, 128, generator.randrange(1, 256)])
        made.append(bytes(changed))
    return made


@pytest.mark.parametrize("kind", ["predictions", "pairs", "probs"])
def test_no_damaged_file_loads_silently(path: Path, kind: str) -> None:
    """A changed byte gives our error or the very same content: never other numbers, ids or meta."""
    pairs = TopLabel(PROBS.max(1), PROBS.argmax(1) == LABELS, ids=np.arange(20), meta={"split": "val"})
    original = {"predictions": full(), "pairs": pairs, "probs": Predictions.from_probs(PROBS, LABELS)}[kind]
    original.save(path)
    expected = content(load(path))
    refused = 0
    tried = mutants(path.read_bytes(), seed=1)
    for mutant in tried:
        path.write_bytes(mutant)
        try:
            found = load(path)
        except InputError:
            refused += 1
            continue
        assert content(found) == expected
    assert len(tried) >= 300
    assert refused > len(tried) // 3


def test_no_truncated_file_loads(path: Path) -> None:
    full().save(path)
    whole = path.read_bytes()
    expected = content(load(path))
    for length in [*range(0, len(whole), max(1, len(whole) // 150)), *range(len(whole) - 40, len(whole))]:
        path.write_bytes(whole[:length])
        try:
            found = load(path)
        except InputError:
            continue
        assert length == len(whole) - 1, "a csv without its last line break is whole"
        assert content(found) == expected


def test_arrays_are_aligned_in_the_file(tmp_path: Path) -> None:
    full().save(tmp_path / "a.npz")
    whole = (tmp_path / "a.npz").read_bytes()
    assert whole.index(LOGITS.tobytes()) % npz.ALIGNMENT == 0
    assert whole.index(LABELS.tobytes()) % npz.ALIGNMENT == 0


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large.npz"
    logits = np.random.default_rng(1).standard_normal((200_000, 100), dtype=np.float32)
    Predictions(logits, np.arange(200_000) % 100, meta={"n": 1}).save(path)
    return path


def test_large_file_is_mapped_not_copied(large: Path) -> None:
    tracemalloc.start()
    try:
        found = Predictions.load(large)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.logits.numel() * 4 == 80_000_000
    assert peak < 25_000_000, "labels and blocks, but no second copy of 80 MB"


def test_private_memory_while_loading(large: Path) -> None:
    """The process's own pages, as the system counts them, grow by far less than the file holds."""
    if not Path("/proc/self/status").exists():
        pytest.skip(reason="only Linux says how much memory is the process's own")
    program = f"""
import re, torch
from calibrant.core.predictions import Predictions
def own():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
torch.aminmax(torch.zeros(1000, 100))
before = own()
found = Predictions.load({str(large)!r})
print(own() - before)
at = found.logits.data_ptr() + 40_000_000
maps = [line.split() for line in open("/proc/self/maps")]
print([m[-1] for m in maps if int(m[0].split("-")[0], 16) <= at < int(m[0].split("-")[1], 16)][0])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    grown, mapped = done.stdout.split()
    assert float(grown) < 25
    assert mapped == str(large)


def test_what_numpy_wrote_is_in_memory_once(tmp_path: Path) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip(reason="only Linux says how much memory a process had at most")
    rng = np.random.default_rng(1)
    sizes = []
    for names in (
        ("logits", "labels"),
        ("labels", "logits"),
    ):  # where an array begins depends on what is before it
        arrays = {
            "logits": rng.standard_normal((200_000, 100), dtype=np.float32),
            "labels": np.arange(200_000) % 100,
        }
        np.savez(tmp_path / "large.npz", **{name: arrays[name] for name in names})
        program = f"""
import re, torch
from calibrant.core.predictions import Predictions
def memory(name):
    return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
torch.aminmax(torch.zeros(1000, 100))
open("/proc/self/clear_refs", "w").write("5")
before = memory("VmRSS")
Predictions.load({str(tmp_path / "large.npz")!r})
print(memory("VmHWM") - before)
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        sizes.append(float(done.stdout))
    assert max(sizes) < 120  # 76 MB of logits, 2 of labels, and blocks; twice the logits would be 152


def test_nobody_can_write_to_the_file(large: Path) -> None:
    before = large.read_bytes()
    found = Predictions.load(large)
    found.logits.zero_()
    del found
    assert large.read_bytes() == before


def test_damage_in_a_mapped_member_is_noticed(large: Path) -> None:
    with large.open("r+b") as file:
        file.seek(40_000_000)
        byte = file.read(1)
        file.seek(40_000_000)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(InputError, match=r"Bad CRC-32 for logits\.npy"):
        load(large)


def test_what_numpy_wrote_is_mapped_or_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "MAP_FROM", 1)
    for kind in (np.float32, np.float64):
        np.savez(tmp_path / "a.npz", labels=LABELS, logits=LOGITS.astype(kind))
        found = Predictions.load(tmp_path / "a.npz")
        assert np.array_equal(found.logits.numpy(), LOGITS.astype(kind))
    monkeypatch.setattr(np, "memmap", lambda *args, **kwargs: (_ for _ in ()).throw(OSError("no maps here")))
    assert np.array_equal(Predictions.load(tmp_path / "a.npz").logits.numpy(), LOGITS)


def test_replaced_file_does_not_change_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "MAP_FROM", 1)
    path = tmp_path / "a.npz"
    Predictions(LOGITS, LABELS).save(path)
    found = Predictions.load(path)
    Predictions(LOGITS + 1, LABELS).save(path)
    assert np.array_equal(found.logits.numpy(), LOGITS)


def test_saving_over_what_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "MAP_FROM", 1)
    path = tmp_path / "a.npz"
    Predictions(LOGITS, LABELS).save(path)
    Predictions.load(path).save(path)
    assert np.array_equal(Predictions.load(path).logits.numpy(), LOGITS)


def test_new_files_follow_the_umask(path: Path) -> None:
    old = os.umask(0o027)
    try:
        full().save(path)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o640


def test_older_members_stay_readable(tmp_path: Path) -> None:
    """An archive with version 2 headers and none of our meta, as numpy may write it."""
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for name, array in {"logits": LOGITS, "labels": LABELS}.items():
            stream = io.BytesIO()
            np.lib.format.write_array(stream, array, version=(2, 0))
            archive.writestr(f"{name}.npy", stream.getvalue())
    assert np.array_equal(Predictions.load(tmp_path / "a.npz").logits.numpy(), LOGITS)


def test_parquet_columns_are_marked(tmp_path: Path) -> None:
    """So that a file of ours whose meta is lost is not taken for somebody else's."""
    pytest.importorskip("pyarrow", reason="parquet files need pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    full().save(path)
    table = parquet.read_table(path)
    parquet.write_table(table.replace_schema_metadata({}), path)
    with pytest.raises(InputError, match="its hash is gone"):
        load(path)
