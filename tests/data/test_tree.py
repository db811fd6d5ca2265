"""Archives of strangers: read in place, never followed out of themselves, and bounded; each refusal is one sentence."""

from __future__ import annotations

import gzip
import io
import random
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from calibrant.core.errors import InputError
from calibrant.core.place import Place
from calibrant.data import tree as module
from calibrant.data.tree import gunzip, tree

FILES = {
    "set/a.bin": b"first",
    "set/deep/b.bin": bytes(range(256)) * 40,
    "set/.hidden": b"no",
    "set/._a.bin": b"no",
}


def write_tar(
    path: Path, files: dict[str, bytes], extra: Callable[[tarfile.TarFile], None] | None = None
) -> Path:
    mode = {".gz": "w:gz", ".tgz": "w:gz", ".bz2": "w:bz2", ".xz": "w:xz"}.get(path.suffix, "w")
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        if extra is not None:
            extra(archive)
    return path


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def write_folder(path: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.tgz", "x.tar.bz2", "x.tar.xz", "x.zip", "x"])
def test_the_same_files_wherever_they_lie(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    make = {".zip": write_zip, "": write_folder}.get(path.suffix, write_tar)
    make(path, FILES)
    before = sorted(tmp_path.rglob("*"))
    with tree(path) as found:
        assert found.names == ("set/a.bin", "set/deep/b.bin")
        assert [found.read(each) for each in reversed(found.names)] == [FILES["set/deep/b.bin"], b"first"]
        assert found.named("b.bin") == "set/deep/b.bin"
        assert found.named("c.bin") is None
    assert sorted(tmp_path.rglob("*")) == before, "reading an archive leaves nothing behind"


def test_a_single_file_is_a_tree_of_one(tmp_path: Path) -> None:
    path = tmp_path / "train-labels.gz"
    path.write_bytes(b"as it is")
    with tree(path) as found:
        assert found.names == ("train-labels.gz",)
        assert found.read("train-labels.gz") == b"as it is"


def of_type(kind: bytes, link: str = "") -> Callable[[tarfile.TarFile], None]:
    def add(archive: tarfile.TarFile) -> None:
        member = tarfile.TarInfo("set/odd")
        member.type, member.linkname = kind, link
        archive.addfile(member)

    return add


@pytest.mark.parametrize(
    ("kind", "link", "message"),
    [
        (tarfile.SYMTYPE, "/etc/passwd", "set/odd in it is a link"),
        (tarfile.LNKTYPE, "set/a.bin", "set/odd in it is a link"),
        (tarfile.CHRTYPE, "", "set/odd in it is no plain file"),
        (tarfile.FIFOTYPE, "", "set/odd in it is no plain file"),
        (tarfile.GNUTYPE_SPARSE, "", "set/odd in it is no plain file"),
    ],
)
def test_odd_members_of_a_tar_are_refused(tmp_path: Path, kind: bytes, link: str, message: str) -> None:
    path = write_tar(tmp_path / "x.tar.gz", FILES, of_type(kind, link))
    with pytest.raises(InputError, match=message), tree(path):
        pass


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    member = zipfile.ZipInfo("set/odd")
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(member, "/etc/passwd")
    with pytest.raises(InputError, match="set/odd in it is a link"), tree(tmp_path / "x.zip"):
        pass


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../escaped", "leads out of the archive's folder"),
        ("set/../../escaped", "leads out of the archive's folder"),
        ("set\\..\\..\\escaped", "leads out of the archive's folder"),
        ("/etc/escaped", "is an absolute path"),
        ("C:/escaped", "is an absolute path"),
        ("C:\\escaped", "is an absolute path"),
    ],
)
@pytest.mark.parametrize("make", [write_tar, write_zip])
def test_paths_that_leave_are_refused(
    tmp_path: Path, make: Callable[[Path, dict[str, bytes]], Path], name: str, message: str
) -> None:
    path = make(tmp_path / ("x.zip" if make is write_zip else "x.tar"), {name: b"out"})
    with pytest.raises(InputError, match=message), tree(path):
        pass
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz", "x.tar"])
def test_bombs_are_refused_before_they_are_unpacked(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = write_zip if name.endswith("zip") else write_tar
    path = make(tmp_path / name, {f"set/{i}": bytes(100_000) for i in range(5)})
    monkeypatch.setattr(module, "MOST_BYTES", 400_000)
    with pytest.raises(InputError, match=r"unpacks to more than 400,000 bytes.*it is refused"), tree(path):
        pass
    monkeypatch.setattr(module, "MOST_BYTES", 1 << 30)
    monkeypatch.setattr(module, "MOST_FILES", 4)
    with pytest.raises(InputError, match=r"holds more than 4 files.*it is refused"), tree(path):
        pass


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_header_without_end_is_refused_unread(tmp_path: Path, form: int) -> None:
    member = tarfile.TarInfo("x" * (3 << 20))  # a long name stands in a header of its own, in either format
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz", format=form) as archive:
        archive.addfile(member)
    assert (tmp_path / "x.tar.gz").stat().st_size < 20_000
    with (
        pytest.raises(InputError, match=r"a header in it has 3,1\d\d,\d{3} bytes"),
        tree(tmp_path / "x.tar.gz"),
    ):
        pass


def test_a_name_that_is_long_is_read(tmp_path: Path) -> None:
    name = "/".join(["folder" * 10] * 9) + "/x"
    with tree(write_tar(tmp_path / "x.tar", {name: b"here"})) as found:
        assert found.read(name) == b"here"


def test_a_zip_that_lies_about_a_size_gives_no_more_than_it_says(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.zip", {"a": bytes(100_000)})
    raw = path.read_bytes()
    at = raw.rindex(b"PK\1\2") + 24  # the size in the directory, which the bound is made of
    assert int.from_bytes(raw[at : at + 4], "little") == 100_000
    path.write_bytes(raw[:at] + (10).to_bytes(4, "little") + raw[at + 4 :])
    with tree(path) as found, pytest.raises(InputError, match="cannot read a in it"):
        found.read("a")


def test_a_name_that_comes_twice_is_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", {"set/a": b"1", "./set/a": b"2"})
    with pytest.raises(InputError, match="set/a twice"), tree(path):
        pass


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz", "x.tar", "x.tar.xz"])
@pytest.mark.parametrize("keep", [0.5, 0.98])
def test_a_cut_archive_is_one_sentence(tmp_path: Path, name: str, keep: float) -> None:
    make = write_zip if name.endswith("zip") else write_tar
    noise = random.Random(0).randbytes(24_000)
    path = make(tmp_path / name, {"a": noise, "b": noise[::-1]})
    raw = path.read_bytes()
    whole = raw.rstrip(b"\0") if name.endswith(".tar") else raw
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(InputError, match=r"cut short or damaged|cannot read") as told:
        read_all(path)
    assert "\n" not in str(told.value)


def read_all(path: Path) -> None:
    with tree(path) as found:
        for each in found.names:
            found.read(each)


def test_gunzip_stops_at_its_bound(tmp_path: Path) -> None:
    packed = gzip.compress(bytes(10_000_000))
    assert gunzip(packed, 10_000_000, Place("x.gz")) == bytes(10_000_000)
    with pytest.raises(InputError, match=r"x\.gz: it unpacks to more than 999 bytes"):
        gunzip(packed, 999, Place("x.gz"))
    with pytest.raises(InputError, match="cut short or damaged"):
        gunzip(packed[:100], 10_000_000, Place("x.gz"))
