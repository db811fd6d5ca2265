"""Files of calibrators: what comes back, and what is refused: every mutated file, and in one sentence."""

from __future__ import annotations

import hashlib
import json
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import calibrant as cal
from calibrant.core.calibration import Fitted
from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.place import Place
from calibrant.core.tensor_file import LONGEST, load_tensors, save_tensors


@pytest.fixture(scope="module")
def fitted(draw) -> Fitted:
    return cal.calibrator("temperature > histogram(bins=5)").fit(*draw(300, 3, seed=5))


@pytest.fixture(scope="module")
def whole(fitted: Fitted, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("file") / "cal.safetensors"
    fitted.save(path)
    return path.read_bytes()


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def joined(header: dict[str, Any], body: bytes, *, seal: bool = True) -> bytes:
    """A file with a right length, and a right hash, as somebody might make it on purpose."""
    about = header.get("__metadata__")
    if seal and isinstance(about, dict):
        header = {**header, "__metadata__": {**about, "sha256": "0" * 64}}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = len(text).to_bytes(8, "little") + text + body
    if seal:
        data = data.replace(b"0" * 64, hashlib.sha256(data).hexdigest().encode(), 1)
    return data


def with_meta(data: bytes, **changed: Any) -> bytes:
    """The file with other meta and a right hash."""
    header, body = parts(data)
    meta = {**json.loads(header["__metadata__"]["meta"]), **changed}
    header["__metadata__"]["meta"] = json.dumps({k: v for k, v in meta.items() if v is not ...})
    return joined(header, body)


def with_tensors(data: bytes, tensors: dict[str, torch.Tensor]) -> bytes:
    from safetensors.torch import save

    header, body = parts(save(tensors, parts(data)[0]["__metadata__"]))
    return joined(header, body)


def refused(data: bytes, path: Path) -> str:
    """The sentence with which a file is refused."""
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        cal.load_calibrator(path)
    told = str(caught.value)
    assert told.startswith(f"{path}: ")
    assert "\n" not in told
    assert len(told) < 600
    return told


def test_what_is_remade_by_hand_is_read(whole: bytes, tmp_path: Path, fitted: Fitted) -> None:
    """So that the refusals below are those of what is changed, and not of how the file is put together."""
    (tmp_path / "a").write_bytes(joined(*parts(whole)))
    assert cal.load_calibrator(tmp_path / "a").calibrator == fitted.calibrator
    (tmp_path / "b").write_bytes(with_tensors(with_meta(whole), dict(fitted.state)))
    assert set(cal.load_calibrator(tmp_path / "b").state) == set(fitted.state)


def test_any_reader_of_safetensors_reads_the_numbers(whole: bytes, fitted: Fitted) -> None:
    from safetensors.torch import load

    found = load(whole)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        name: tensor.tolist() for name, tensor in fitted.state.items()
    }


def test_the_same_fit_is_the_same_file(whole: bytes, fitted: Fitted, tmp_path: Path) -> None:
    header, _ = parts(whole)
    fitted.save(tmp_path / "again")
    again, _ = parts((tmp_path / "again").read_bytes())
    assert json.loads(again["__metadata__"]["meta"]) == json.loads(header["__metadata__"]["meta"])
    meta = json.loads(header["__metadata__"]["meta"])
    assert meta["spec"] == str(fitted.calibrator)
    assert meta["classes"] == 3
    assert meta["version"] == cal.__version__
    assert meta["provenance"] == {"n": 300}


def test_a_newer_schema_is_refused_with_its_version(whole: bytes, tmp_path: Path) -> None:
    header, body = parts(whole)
    header["__metadata__"]["schema"] = "7"
    told = refused(joined(header, body, seal=False), tmp_path / "a")  # its hash may be another thing by then
    assert "newer Calibrant (schema 7, this one reads up to 1)" in told
    assert "upgrade" in told


@pytest.mark.parametrize("schema", ["", "-1", "1.0", "one", "9" * 5000, "²"])
def test_a_schema_that_is_no_number(schema: str, whole: bytes, tmp_path: Path) -> None:
    header, body = parts(whole)
    header["__metadata__"]["schema"] = schema
    assert "no schema version" in refused(joined(header, body), tmp_path / "a")


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("temperatur", "no calibrator 'temperatur'; did you mean 'temperature'"),
        ("quantum(depth=3)", "by version 9.1, so upgrade"),
        ("temperature(magic=2)", "temperature has no argument 'magic'"),
        ("temperature(bins=0)", "its calibrator cannot be made"),
        ("histogram > temperature", "cannot follow"),
        ("auto", "chooses a calibrator when it is fitted"),
        ("temperature > auto", "chooses a calibrator when it is fitted"),
        ("temperature + identity", "is a sum"),
        ("__import__('os').system('true')", "cannot make its calibrator"),
        ("temperature" + " > temperature" * 300, "a chain of 301 calibrators is too long"),
        ("(" * 1900, "cannot read"),
        ("temperature > " * 3, "nothing on one side"),
        ("", "empty"),
    ],
)
def test_a_spec_that_this_version_does_not_have(spec: str, told: str, whole: bytes, tmp_path: Path) -> None:
    found = refused(with_meta(whole, spec=spec, version="9.1"), tmp_path / "a")
    assert told in found


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"spec": 3}, "names no calibrator"),
        ({"spec": ...}, "names no calibrator"),
        ({"classes": True}, "names no calibrator"),
        ({"classes": "3"}, "names no calibrator"),
        ({"classes": 3.0}, "names no calibrator"),
        ({"classes": 1}, "claims 1 classes"),
        ({"classes": -3}, "claims -3 classes"),
        ({"classes": 10**30}, "claims 1000"),
        ({"notes": "a"}, "notes"),
        ({"notes": [1]}, "notes"),
        ({"provenance": []}, "provenance"),
        ({"provenance": ...}, "provenance"),
        ({"spec": "identity"}, "identity keeps []"),
        ({"spec": "temperature"}, "keeps ['temperature']"),
    ],
)
def test_meta_that_makes_no_calibrator(
    changed: dict[str, Any], told: str, whole: bytes, tmp_path: Path
) -> None:
    assert told in refused(with_meta(whole, **changed), tmp_path / "a")


@pytest.mark.parametrize(
    "meta",
    [
        "",
        "{",
        "[]",
        "3",
        "null",
        '{"spec": NaN}',
        "[" * 100_000,
        '{"a":' * 50_000,
        '{"classes": ' + "9" * 6000 + "}",
    ],
    ids=lambda text: text[:12],
)
def test_meta_that_is_no_object(meta: str, whole: bytes, tmp_path: Path) -> None:
    header, body = parts(whole)
    header["__metadata__"]["meta"] = meta
    assert "header is no JSON" in refused(joined(header, body), tmp_path / "a")


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "NaN": lambda t: torch.full_like(t, torch.nan),
    "infinite": lambda t: torch.full_like(t, torch.inf),
    "one more dimension": lambda t: t[None],
    "half": lambda t: t.half(),
    "bfloat16": lambda t: t.bfloat16(),
    "int8": lambda t: t.to(torch.int8),
    "complex": lambda t: t.to(torch.complex64),
    "float8": lambda t: t.to(torch.float8_e4m3fn),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_state_that_is_none(change: str, whole: bytes, fitted: Fitted, tmp_path: Path) -> None:
    name = "0.temperature"
    state = {**fitted.state, name: CHANGES[change](fitted.state[name])}
    assert f"{name} of " in refused(with_tensors(whole, state), tmp_path / "a")


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_numbers_that_give_no_probabilities(
    temperature: float, whole: bytes, fitted: Fitted, tmp_path: Path
) -> None:
    state = {**fitted.state, "0.temperature": torch.tensor(temperature, dtype=torch.float64)}
    told = refused(
        with_tensors(with_meta(whole, spec=SCALED), {"temperature": state["0.temperature"]}), tmp_path / "a"
    )
    assert "give no probabilities" in told


SCALED = str(cal.calibrator("temperature"))


@pytest.mark.parametrize("spec", ["isotonic", "histogram", "spline", "bbq", "irm"])
def test_tensors_that_do_not_fit_together(spec: str, tmp_path: Path, draw) -> None:
    """Lengths that depend on the data are not in `shapes`; each tensor alone is made shorter or longer."""
    made = cal.calibrator(spec).fit(*draw(200, 3, seed=7, sharpen=3))
    made.save(tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    for name, tensor in made.state.items():
        if not tensor.ndim:
            continue
        for other in (tensor[:-1], torch.cat([tensor, tensor[-1:]])):
            (tmp_path / "a").write_bytes(with_tensors(data, {**made.state, name: other.contiguous()}))
            try:
                found = cal.load_calibrator(tmp_path / "a")
            except CalibrantError:
                continue
            assert found(torch.zeros(2, 3)) is not None  # whatever is accepted can be used


def test_a_state_that_lacks_or_adds(whole: bytes, fitted: Fitted, tmp_path: Path) -> None:
    more = {**fitted.state, "1.more": torch.zeros(2)}
    assert "this state holds" in refused(with_tensors(whole, more), tmp_path / "a")
    assert "this state holds []" in refused(with_tensors(whole, {}), tmp_path / "a")


def test_offsets_that_lie(whole: bytes, tmp_path: Path) -> None:
    for offsets in ([0, 1 << 62], [-8, 0], [8, 0], [0, 0], [4, 12], ["0", "8"], [0.0, 8.0], []):
        header, body = parts(whole)
        header["0.temperature"]["data_offsets"] = offsets
        assert "no whole safetensors file" in refused(joined(header, body), tmp_path / "a")
    for shape in ([1 << 40, 1 << 40], [-1], [0], ["1"], [2], [1] * 5000):
        header, body = parts(whole)
        header["0.temperature"]["shape"] = shape
        refused(joined(header, body), tmp_path / "a")
    for kind in ("F4", "F7", "", 3, "OBJECT", "F6_E2M3", "C64", "U16", "F32"):
        header, body = parts(whole)
        header["0.temperature"]["dtype"] = kind
        refused(joined(header, body), tmp_path / "a")


def test_lengths_that_lie(whole: bytes, tmp_path: Path) -> None:
    for size in (0, 1, len(whole), LONGEST, LONGEST + 1, 1 << 40, (1 << 64) - 1):
        refused(size.to_bytes(8, "little") + whole[8:], tmp_path / "a")
    for size in range(24):
        refused(whole[:size], tmp_path / "a") if size else None
    (tmp_path / "empty").write_bytes(b"")
    for path in (tmp_path / "empty", tmp_path / "nowhere", tmp_path):
        with pytest.raises(InputError):
            cal.load_calibrator(path)


def test_files_of_other_kinds(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(3)}, tmp_path / "theirs")
    with pytest.raises(InputError, match="no file of calibrator, but of another program"):
        cal.load_calibrator(tmp_path / "theirs")
    save_tensors(tmp_path / "ours", "weights", {"a": torch.zeros(3)}, {})
    with pytest.raises(InputError, match="no file of calibrator, but of weights"):
        cal.load_calibrator(tmp_path / "ours")
    assert load_tensors(tmp_path / "ours", "weights")[0]["a"].tolist() == [0, 0, 0]
    (tmp_path / "pickle").write_bytes(b"\x80\x04\x95" + bytes(50))
    with pytest.raises(InputError, match="no whole safetensors file"):
        cal.load_calibrator(tmp_path / "pickle")


def test_a_hash_given_twice_or_not_at_all(whole: bytes, tmp_path: Path) -> None:
    header, body = parts(whole)
    again = {**header, "__metadata__": {**header["__metadata__"], "a": 'x"sha256":"y'}}
    (tmp_path / "escaped").write_bytes(
        joined(again, body)
    )  # quotes in a text are escaped, and are no second hash
    assert cal.load_calibrator(tmp_path / "escaped").classes == 3
    nested = {**header, "a": {"sha256": "0"}}
    assert "SHA-256 is gone" in refused(joined(nested, body), tmp_path / "a")
    del header["__metadata__"]["sha256"]
    assert "SHA-256 is gone" in refused(joined(header, body, seal=False), tmp_path / "a")


def mutant(data: bytes, rng: random.Random) -> bytes:
    """The bytes with one to three changes."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(out)) if len(out) else 0
        match rng.randrange(9):
            case 0 | 1 | 2 if out:
                out[at] ^= 1 << rng.randrange(8)
            case 3:
                del out[at:]
            case 4:
                out[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 5 if out:
                del out[at : at + rng.randrange(1, 9)]
            case 6 if out:
                out[at] = rng.choice(b' \t\n\r\0"{}[]:,\\09azAZ')
            case 7:
                out += rng.randbytes(rng.randrange(1, 40))
            case _:
                other = rng.randrange(len(out)) if out else 0
                out[at : at + 4], out[other : other + 4] = out[other : other + 4], out[at : at + 4]
    return bytes(out)


def forged(data: bytes, rng: random.Random) -> bytes:
    """A mutant in the header or the body with a right length and a right hash, as an opponent would make it."""
    size = int.from_bytes(data[:8], "little")
    header, body = data[8 : 8 + size], data[8 + size :]
    if rng.random() < 0.8:
        header = mutant(header, rng)
    else:
        body = mutant(body, rng)
    spot = header.find(b'"sha256":"') + 10
    if spot > 9 and len(header) >= spot + 64:
        header = header[:spot] + b"0" * 64 + header[spot + 64 :]
    out = len(header).to_bytes(8, "little") + header + body
    return out.replace(b"0" * 64, hashlib.sha256(out).hexdigest().encode(), 1)


def hunt(whole: bytes, count: int, path: Path, *, seed: int) -> tuple[int, int]:
    """How many mutants were refused, and how many were forged well enough to be a calibrator; nothing else happens."""
    rng = random.Random(seed)
    refusals = valid = 0
    for number in range(count):
        forge = number % 4 == 3
        data = whole
        while (
            data == whole
        ):  # two changes may undo each other, and a change of the hash is undone by a forger
            data = forged(whole, rng) if forge else mutant(whole, rng)
        path.write_bytes(data)
        try:
            found = cal.load_calibrator(path)
        except CalibrantError:
            refusals += 1
            continue
        assert forge, f"mutant {number} was accepted"
        logits = torch.zeros(2, found.classes) if found.classes < 1000 else None
        assert all(tensor.isfinite().all() for tensor in found.state.values())
        assert logits is None or found(logits) is not None
        valid += 1
    return refusals, valid


def test_a_thousand_mutants_are_refused(whole: bytes, tmp_path: Path) -> None:
    refusals, valid = hunt(whole, 1000, tmp_path / "a", seed=1)
    assert refusals + valid == 1000
    assert refusals > 850  # a forger can change a number of a state, a note or a name in the provenance


@pytest.mark.slow
def test_a_hundred_thousand_mutants_are_refused(whole: bytes, tmp_path: Path) -> None:
    refusals, valid = hunt(whole, 100_000, tmp_path / "a", seed=2)
    assert refusals + valid == 100_000
    assert refusals > 85_000


def test_single_bits_matter(whole: bytes, tmp_path: Path) -> None:
    step = max(1, 8 * len(whole) // 400)
    for bit in range(0, 8 * len(whole), step):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << (bit % 8)
        (tmp_path / "a").write_bytes(bytes(data))
        with pytest.raises(CalibrantError):
            cal.load_calibrator(tmp_path / "a")


def test_bombs_cost_little(whole: bytes, tmp_path: Path) -> None:
    """The largest headers that are read at all, each the worst of its kind; memory is a multiple of the file."""
    header, body = parts(whole)
    about = header["__metadata__"]
    bombs = [
        b"[" * LONGEST,
        b'{"a":' * (LONGEST // 5),
        b"9" * LONGEST,
        json.dumps({"__metadata__": {**about, "meta": "[" * 1_000_000}}).encode(),
    ]
    for bomb in bombs:
        tracemalloc.start()
        start = time.process_time()
        refused(len(bomb).to_bytes(8, "little") + bomb + body, tmp_path / "a")
        took = time.process_time() - start
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert took < 5  # a fraction of a second here; what is not linear would take hours
        assert peak < 8 * LONGEST


def test_what_was_loaded_survives_its_file(fitted: Fitted, tmp_path: Path, draw) -> None:
    logits, _ = draw(50, 3, seed=6)
    fitted.save(tmp_path / "a")
    found = cal.load_calibrator(tmp_path / "a")
    before = found(logits).confidence.clone()
    with (tmp_path / "a").open("r+b") as file:
        file.write(bytes(4000))
    assert torch.equal(found(logits).confidence, before)


def test_a_directory_is_told_what_is_wanted_instead(tmp_path: Path) -> None:
    (tmp_path / "predictions").mkdir()
    (tmp_path / "predictions" / "test.npz").write_bytes(b"no calibrator, so it must not be advised")
    with pytest.raises(InputError, match=r"this is a directory; give a calibrator file$"):
        cal.load_calibrator(tmp_path)


def test_nothing_is_left_where_it_cannot_be_written(fitted: Fitted, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no directory"):
        fitted.save(tmp_path / "nowhere" / "cal")
    broken = Fitted(fitted.calibrator, {**fitted.state, "0.temperature": torch.tensor(torch.nan)}, 3)
    with pytest.raises(CalibrantError, match="not finite"):
        broken.save(tmp_path / "cal")
    assert list(tmp_path.iterdir()) == []


def test_places_of_errors() -> None:
    with pytest.raises(InputError, match=r"a\.cal: .*no such file"):
        load_tensors(Path("a.cal"), "calibrator")
    assert Place("a.cal").source == "a.cal"


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_bad_row_is_not_looked_at_and_changes_no_other(fitted: Fitted, draw, bad: float) -> None:
    logits, _ = draw(20, 3, seed=7)
    before = fitted(logits).confidence
    logits[4, 1] = bad
    after = fitted(logits).confidence
    others = torch.arange(20) != 4
    assert torch.equal(after[others], before[others])
    assert bool(after[4].isnan())
