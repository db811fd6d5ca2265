"""Fetching from a server of this test: what broke off goes on, what is wrong is deleted, no network has a remedy."""

from __future__ import annotations

import hashlib
import io
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from calibrant.core.errors import CalibrantError, InputError, SpecError
from calibrant.core.samples import Download
from calibrant.data import CIFAR10, shelf, store
from calibrant.data import download as module
from calibrant.data.download import Unreachable, download

Noise = Callable[..., np.ndarray]


@dataclass
class Site:
    """What the server has, how it behaves, and what it was asked for."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    breaks_after: int | None = None
    status: int = 200
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def item(self, name: str, checksum: str | None = None) -> Download:
        """The file of that name, with its own hash unless another is given."""
        own = f"md5:{hashlib.md5(self.files.get(name, b''), usedforsecurity=False).hexdigest()}"
        return Download(f"{self.address}/{name}", own if checksum is None else checksum)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    there = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = there.files.get(self.path[1:])
            wanted = self.headers.get("Range")
            there.asked.append((self.path[1:], wanted))
            if data is None or there.status != 200:
                self.send_error(404 if data is None else there.status)
                return
            start = int(re.findall(r"\d+", wanted)[0]) if wanted and there.ranges else 0
            if start and start >= len(data):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            stop = len(data) if there.breaks_after is None else start + there.breaks_after
            self.wfile.write(data[start:stop])

        def log_message(self, *_: object) -> None:
            """Nothing: the test reads `asked`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    there.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield there
    server.shutdown()
    thread.join()
    server.server_close()


def silent(done: int, total: int) -> None:
    """Nobody looks at the progress."""


DATA = np.random.default_rng(0).bytes(100_000)


def test_a_file_comes_whole_and_its_progress_is_told(site: Site, tmp_path: Path) -> None:
    site.files["a.bin"] = DATA
    told: list[tuple[int, int]] = []
    path = download(site.item("a.bin"), tmp_path, lambda done, total: told.append((done, total)))
    assert path == tmp_path / "a.bin"
    assert path.read_bytes() == DATA
    assert told[-1] == (100_000, 100_000)
    assert [each.name for each in tmp_path.iterdir()] == ["a.bin"]
    download(site.item("a.bin"), tmp_path, silent)
    assert len(site.asked) == 1, "what is there and right is not asked for again"


def test_a_transfer_that_breaks_goes_on_where_it_was(site: Site, tmp_path: Path) -> None:
    site.files["a.bin"], site.breaks_after = DATA, 40_000
    assert download(site.item("a.bin"), tmp_path, silent).read_bytes() == DATA
    assert site.asked == [("a.bin", None), ("a.bin", "bytes=40000-"), ("a.bin", "bytes=80000-")]


def test_a_program_that_was_killed_goes_on_as_well(site: Site, tmp_path: Path) -> None:
    site.files["a.bin"] = DATA
    (tmp_path / "a.bin.part").write_bytes(DATA[:70_000])
    assert download(site.item("a.bin"), tmp_path, silent).read_bytes() == DATA
    assert site.asked == [("a.bin", "bytes=70000-")]
    (tmp_path / "a.bin").unlink()
    (tmp_path / "a.bin.part").write_bytes(DATA)  # all was there, and only the hash had not been looked at
    assert download(site.item("a.bin"), tmp_path, silent).read_bytes() == DATA


def test_a_server_without_ranges_begins_anew(site: Site, tmp_path: Path) -> None:
    site.files["a.bin"], site.ranges = DATA, False
    (tmp_path / "a.bin.part").write_bytes(b"x" * 70_000)
    assert download(site.item("a.bin"), tmp_path, silent).read_bytes() == DATA
    site.breaks_after = 40_000
    (tmp_path / "a.bin").unlink()
    with pytest.raises(Unreachable, match=r"the connection to 127\.0\.0\.1:\d+ breaks at 40,000 bytes"):
        download(site.item("a.bin"), tmp_path, silent)
    assert (tmp_path / "a.bin.part").stat().st_size == 40_000, "kept, in case the server learns to go on"


def test_a_connection_that_always_breaks_is_given_up(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRIES", 3)
    site.files["a.bin"], site.breaks_after = DATA, 10
    with pytest.raises(Unreachable, match="broke 3 times, at last at 30 bytes"):
        download(site.item("a.bin"), tmp_path, silent)


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_what_is_not_the_published_file_is_deleted(site: Site, tmp_path: Path, kind: str) -> None:
    site.files["a.bin"] = DATA
    wanted = f"{kind}:{hashlib.new(kind, b'another', usedforsecurity=False).hexdigest()}"
    with pytest.raises(
        Unreachable, match=rf"gave is not the published file \({kind}:.*not {wanted}\), and was del"
    ):
        download(site.item("a.bin", wanted), tmp_path, silent)
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_another_file_is_found_out(site: Site, tmp_path: Path) -> None:
    site.files["a.bin"] = DATA
    (tmp_path / "a.bin.part").write_bytes(b"another file" * 100)
    with pytest.raises(Unreachable, match="is not the published file"):
        download(site.item("a.bin"), tmp_path, silent)
    assert download(site.item("a.bin"), tmp_path, silent).read_bytes() == DATA


def test_without_a_hash_nothing_is_joined(site: Site, tmp_path: Path) -> None:
    site.files["a.bin"] = DATA
    (tmp_path / "a.bin.part").write_bytes(b"another file" * 100)
    assert download(site.item("a.bin", ""), tmp_path, silent).read_bytes() == DATA


@pytest.mark.parametrize(
    ("status", "answer"), [(404, r"404 \(Not Found\)"), (503, r"503 \(Service Unavailable\)")]
)
def test_what_a_server_answers_is_told(site: Site, tmp_path: Path, status: int, answer: str) -> None:
    site.files["a.bin"], site.status = DATA, status
    with pytest.raises(Unreachable, match=rf"/a\.bin answers {answer}"):
        download(site.item("a.bin"), tmp_path, silent)


def test_more_than_any_dataset_is_not_stored(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 50_000)
    monkeypatch.setattr(module, "PIECE", 10_000)
    site.files["a.bin"] = DATA
    with pytest.raises(Unreachable, match="gives more than 50,000 bytes"):
        download(site.item("a.bin"), tmp_path, silent)
    assert (tmp_path / "a.bin.part").stat().st_size <= 50_000


@pytest.fixture
def archive(noise: Noise) -> bytes:
    """Twelve images of CIFAR-10 as an npz, under the name that the server has for them."""
    stream = io.BytesIO()
    x, y = noise(12, 3, 32, 32), np.arange(12) % 10
    np.savez(stream, x_train=x[:10], y_train=y[:10], x_test=x[10:], y_test=y[10:])
    return stream.getvalue()


@pytest.fixture
def offered(site: Site, archive: bytes, monkeypatch: pytest.MonkeyPatch) -> Site:
    """CIFAR-10 as a dataset whose publisher is this test."""
    site.files["c.npz"] = archive
    monkeypatch.setattr(CIFAR10, "downloads", (site.item("c.npz"),))
    return site


def test_a_fetch_downloads_converts_and_tidies_up(offered: Site, tmp_path: Path) -> None:
    begun: list[str] = []

    def progress(item: Download) -> Callable[[int, int], None]:
        begun.append(item.name)
        return silent

    kept = shelf.fetch("cifar10", tmp_path / "data", progress)
    assert (kept.train, kept.test, kept.source, begun) == (10, 2, "fetched", ["c.npz"])
    assert [p.name for p in (tmp_path / "data").rglob("*") if p.is_file()] == ["cifar10.npz"]
    assert len(CIFAR10().load(tmp_path / "data").train) == 10
    assert shelf.fetch("cifar10", tmp_path / "data", progress).sha256 == kept.sha256
    assert len(offered.asked) == 1, "what is kept is not fetched again"


def test_without_a_network_the_message_says_what_to_do(
    offered: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unused = Download("http://127.0.0.1:9/c.npz", "md5:0")  # the port of a service that nobody runs
    monkeypatch.setattr(CIFAR10, "downloads", (unused,))
    folder = tmp_path / "my data"
    with pytest.raises(InputError) as told:
        shelf.fetch("cifar10", folder, lambda _: silent)
    assert str(told.value) == (
        "127.0.0.1:9 cannot be reached (Connection refused); run this again to go on, or get "
        f"http://127.0.0.1:9/c.npz elsewhere and run 'calibrant data import cifar10 c.npz --data-dir '{folder}''"
    )
    monkeypatch.setattr(CIFAR10, "downloads", (unused, Download("http://127.0.0.1:9/d.npz", "md5:0")))
    with pytest.raises(
        InputError, match=r"c\.npz and http.*d\.npz elsewhere, put them into one folder and run "
    ):
        shelf.fetch("cifar10", folder, lambda _: silent)


def test_what_cannot_be_fetched_says_so(tmp_path: Path) -> None:
    for name, message in (
        ("images", r"images reads your own files where they lie: write images\(path=\.\.\.\)"),
        ("fashion-mini", "fashion-mini needs no files; those that can be fetched or imported are .*cifar10"),
        ("cifar", "no dataset 'cifar'; did you mean 'cifar10'"),
    ):
        with pytest.raises(SpecError, match=message):
            shelf.fetch(name, tmp_path, lambda _: silent)


def test_a_damaged_copy_is_not_replaced_unasked(offered: Site, tmp_path: Path) -> None:
    kept = shelf.fetch("cifar10", tmp_path, lambda _: silent)
    raw = bytearray(kept.path.read_bytes())
    kept.path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(InputError, match=r"cifar10\.npz: .*\(to fetch it anew, delete this file\)"):
        shelf.fetch("cifar10", tmp_path, lambda _: silent)
    assert [item.state for item in shelf.items(tmp_path) if item.name == "cifar10"] == ["damaged"]
    raw[len(raw) // 3] ^= 1
    kept.path.write_bytes(raw)
    with pytest.raises(InputError, match="damaged"):
        CIFAR10().load(tmp_path)


def test_a_kept_file_of_another_dataset_is_refused(offered: Site, tmp_path: Path) -> None:
    kept = shelf.fetch("cifar10", tmp_path, lambda _: silent)
    kept.path.rename(tmp_path / "svhn.npz")
    with pytest.raises(InputError, match=r"svhn\.npz: this is not svhn as Calibrant keeps it; convert it"):
        store.load("svhn", tmp_path)
    with pytest.raises(
        InputError, match=f"cifar10 is not in {tmp_path}; get it with 'calibrant data fetch cifar10"
    ):
        store.load("cifar10", tmp_path)


def test_where_data_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CALIBRANT_DATA", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.directory() == tmp_path / ".local" / "share" / "calibrant"
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    assert store.directory() == tmp_path / ".local" / "share" / "calibrant"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert store.directory() == tmp_path / "xdg" / "calibrant"
    monkeypatch.setenv("CALIBRANT_DATA", "~/mine")
    assert store.directory() == tmp_path / "mine"
    assert store.directory(tmp_path / "given") == tmp_path / "given"


def test_a_data_directory_that_cannot_be_made_is_refused(offered: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(CalibrantError, match="cannot make this directory"):
        shelf.fetch("cifar10", tmp_path / "file", lambda _: silent)


def test_what_there_is(offered: Site, tmp_path: Path) -> None:
    shelf.fetch("cifar10", tmp_path, lambda _: silent)
    found = {item.name: item for item in shelf.items(tmp_path)}
    states = {name: found[name].state for name in ("cifar10", "svhn", "fashion-mini", "synthetic", "images")}
    assert states == {
        "cifar10": "kept",
        "svhn": "absent",
        "fashion-mini": "ready",
        "synthetic": "ready",
        "images": "own",
    }
    images = [item for item in found.values() if item.downloads and item.name != "20newsgroups"]
    assert len(images) == 6
    assert all(re.match(r"md5:[0-9a-f]{32}$", each.checksum) for item in images for each in item.downloads)


def test_a_copy_with_other_rows_is_told(
    offered: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = shelf.fetch("cifar10", tmp_path, lambda _: silent)
    assert "cifar10 has 50,000 training and 10,000 test rows" in (shelf.oddity("cifar10", kept) or "")
    monkeypatch.setattr(CIFAR10, "rows", (10, 2))
    assert shelf.oddity("cifar10", kept) is None
    monkeypatch.delattr(CIFAR10, "rows")
    assert shelf.oddity("cifar10", kept) is None, "nobody says how many there are"
