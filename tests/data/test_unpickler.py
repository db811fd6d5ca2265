"""Pickles of strangers: whatever they try, nothing runs, nothing fills the memory, and the answer is one sentence."""

from __future__ import annotations

import copyreg
import pickle
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.core.errors import InputError
from calibrant.core.place import Place
from calibrant.data.formats import pickled
from calibrant.data.formats.pickled import unpickle

PLACE = Place("batch")
U1 = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def array(kind: bytes = U1, shape: bytes = b"(K\x03t", raw: bytes = b"U\x03abc") -> bytes:
    """What Python 2 wrote of an array, from its parts."""
    return b"\x80\x02" + ARRAY + b"(K\x01" + shape + kind + b"\x89" + raw + b"tb."


def call(module: str, name: str, *arguments: str) -> bytes:
    """Call a function by its name: what an attack comes down to."""
    return b"\x80\x02c" + f"{module}\n{name}\n(".encode() + b"".join(map(text, arguments)) + b"tR."


TOUCH = "touch CANARY"
WRITE = "open('CANARY', 'w')"
NESTED = b"\x80\x02}" + b")" + b"\x85" * 200_000 + b"K\x01s."

ATTACKS: dict[str, bytes] = {
    "os.system": call("os", "system", TOUCH),
    "posix.system": call("posix", "system", TOUCH),
    "nt.system": call("nt", "system", TOUCH),
    "eval": call("builtins", "eval", WRITE),
    "eval of Python 2": call("__builtin__", "eval", WRITE),
    "exec": call("builtins", "exec", WRITE),
    "Popen": call("subprocess", "getoutput", TOUCH),
    "getattr": call("builtins", "getattr", "os", "system"),
    "import_module": call("importlib", "import_module", "antigravity"),
    "a function of numpy": call("numpy.testing._private.utils", "runstring", WRITE, ""),
    "numpy.load": call("numpy", "load", "CANARY"),
    "an attribute of what is admitted": b"\x80\x04"
    + text("numpy")
    + text("ndarray.tofile")
    + b"\x93"
    + text("CANARY")
    + b"\x85R.",
    "nested in a list in a dict": b"\x80\x02}" + text("data") + b"](" + call("os", "system", TOUCH)[2:-1] + b"es.",
    "as an argument of an array": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n("
    + call("os", "system", TOUCH)[2:-1]
    + b"tR.",
    "as the state of an array": b"\x80\x02" + ARRAY + call("os", "system", TOUCH)[2:-1] + b"b.",
    "as a type of an array": array(kind=call("os", "system", TOUCH)[2:-1]),
    "by INST": b"(" + text(TOUCH) + b"ios\nsystem\n.",
    "by OBJ": b"(cos\nsystem\n" + text(TOUCH) + b"o.",
    "by NEWOBJ": b"\x80\x02cos\nsystem\n" + text(TOUCH) + b"\x85\x81.",
    "fetched from the memo": b"\x80\x02cos\nsystem\nq\x00000h\x00" + text(TOUCH) + b"\x85R.",
    "a persistent id": b"Pfile:CANARY\n.",
    "a binary persistent id": b"\x80\x02" + text("file:CANARY") + b"Q.",
    "an extension code": b"\x80\x02\x82\xf1" + text(TOUCH) + b"\x85R.",
    "a buffer from outside": b"\x80\x05\x97.",
    "a set": b"\x80\x04\x8f.",
    "bytes by another codec": call("_codecs", "encode", "a", "zlib_codec"),
    "bytes with a state": b"\x80\x02c_codecs\nencode\n" + text("a") + text("latin1") + b"\x86R}b.",
    "a class with a state": b"\x80\x02cnumpy\nndarray\n}" + text("array") + b"K\x01sb.",
    "a class by itself": b"\x80\x02cnumpy\nndarray\n.",
    "a type by itself": b"\x80\x02" + U1 + b".",
    "an array of objects": array(kind=U1.replace(b"u1", b"O8")),
    "an array of records": array(kind=U1.replace(b"u1", b"V3")),
    "an array without a state": b"\x80\x02" + ARRAY + b".",
    "a state that is no array": b"\x80\x02" + ARRAY + b"(K\x01K\x02tb.",
    "a shape below 0": array(shape=b"(J\xff\xff\xff\xffJ\xfd\xff\xff\xfft"),
    "a shape of truths": array(shape=b"(K\x03\x88t"),
    "a shape beyond its bytes": array(shape=b"(K\x04t"),
    "a shape beyond any memory": array(shape=b"(" + 4 * b"J\xff\xff\xff\x7f" + b"t"),
    "a text beyond the file": b"\x80\x02T\xff\xff\xff\x7fabc.",
    "bytes beyond any memory": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"abc.",
    "a memo beyond any memory": b"\x80\x02Nr\xff\xff\xff\x3f.",
    "a memo that is empty": b"\x80\x02h\x07.",
    "tuples without end as a key": NESTED,
    "lists without end": b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",
    "data ten deep": b"\x80\x02" + b"]" * 10 + b"a" * 9 + b".",
    "a list in itself": b"\x80\x02]q\x00h\x00a.",
    "a list as a key": b"\x80\x02}]K\x01s.",
    "no end": b"\x80\x02]",
    "an empty stack": b"\x80\x02.",
    "a protocol of the future": b"\x80\x63N.",
    "no pickle": b"PK\x03\x04 this is a zip",
    "nothing": b"",
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_one_sentence_and_nothing_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"^batch: ") as told:
        unpickle(ATTACKS[name], PLACE)
    assert "\n" not in str(told.value)
    assert "refused" in str(told.value) or "get it again" in str(told.value)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")
    # kilobytes; none of these pickles has a megabyte, and none may need a hundred
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_the_attacks_are_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: with pickle itself one of them does what it is for."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(ATTACKS["eval"]).close()  # noqa: TID251, S301 (it opens a file in an empty folder)
    assert [each.name for each in tmp_path.iterdir()] == ["CANARY"]


def test_an_extension_that_this_process_knows_is_refused_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An extension that was used once is in a cache of pickle, from where it comes without a question."""
    monkeypatch.chdir(tmp_path)
    copyreg.add_extension("os", "system", 0xF2)
    try:
        cached = pickle.loads(b"\x80\x02\x82\xf2.")  # noqa: TID251, S301 (only fetches the function, as others may have)
        assert cached.__name__ == "system"
        with pytest.raises(InputError, match="has the instruction EXT1"):
            unpickle(b"\x80\x02\x82\xf2" + text(TOUCH) + b"\x85R.", PLACE)
    finally:
        copyreg.remove_extension("os", "system", 0xF2)
        copyreg.clear_extension_cache()
    assert list(tmp_path.iterdir()) == []


def test_a_pickle_larger_than_any_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled, "MOST_BYTES", 10)
    with pytest.raises(InputError, match="more than 10 bytes"):
        unpickle(array(), PLACE)


def test_the_message_names_what_was_asked_for() -> None:
    with pytest.raises(
        InputError, match=r"asks for os\.system, which no dataset needs; it is refused, unrun"
    ):
        unpickle(ATTACKS["os.system"], PLACE)


class Reduced:
    """An object that asks to be rebuilt by a call, as any object may."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return print, ("ran",)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_what_pickle_itself_writes_of_an_object_is_refused(
    protocol: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in (Reduced(), [{"data": Reduced()}], np.array([Reduced()], dtype=object), {1, 2}, 3 + 4j):
        with pytest.raises(InputError):
            unpickle(pickle.dumps(value, protocol), PLACE)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["u1", "<i4", ">i8", "f8", "?"])
def test_arrays_come_back(protocol: int, dtype: str) -> None:
    found = np.arange(24).reshape(2, 3, 4).astype(dtype)
    empty = (
        found[:0] if protocol > 2 else found
    )  # protocol 2 writes no bytes as a call of bytes(), which we refuse
    for each in (found, np.asfortranarray(found), empty):
        back = unpickle(
            pickle.dumps({"a": [each, each], "b": (1, -2, 2**70, 0.5, None, True, "é")}, protocol), PLACE
        )
        np.testing.assert_array_equal(back["a"][0], each)
        assert back["a"][0] is back["a"][1]
        assert back["a"][0].dtype == each.dtype
        assert back["b"] == (1, -2, 2**70, 0.5, None, True, "é")


def test_what_python_2_wrote_comes_back() -> None:
    assert unpickle(array(), PLACE).tolist() == [97, 98, 99]
    assert unpickle(b"\x80\x02}(U\x04dataU\x02\xff\xfeU\x01nK\x07u.", PLACE) == {
        b"data": b"\xff\xfe",
        b"n": 7,
    }
