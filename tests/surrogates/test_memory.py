"""No surrogate builds N x K x K, and what DECE keeps grows as N K."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from calibrant.surrogates import CPC, DECE, SECE

MEGABYTES = 50
PROBE = """
import torch
from pathlib import Path
from calibrant.core.registry import describe
from calibrant.core.spec import build
torch.set_num_threads(1)

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])

def run(piece, n, k):
    logits = torch.randn(n, k, requires_grad=True)
    torch.autograd.grad(piece(logits, torch.randint(k, (n,))), logits)

found = [entry.piece for kind in ("penalties", "surrogates") for entry in describe(kind)]
pieces = [piece() for piece in found if "surrogates" in piece.__module__]
pieces.append(build('kde_ece(kernel="dirichlet")', "surrogates"))
pieces.append(lambda logits, labels: (logits[:, :, None] - logits[:, None, :150]).abs().sum())  # 73 MB, to be seen
for piece in pieces:
    run(piece, 4, 200)  # code that is loaded once is not the batch's
for piece in pieces:
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = peak()
    run(piece, 128, 1000)
    print(piece, (peak() - before) / 1024, sep="\\t")
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak is read from Linux's /proc")
def test_a_thousand_classes_need_little_memory() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    peaks = {name: float(size) for name, size in (line.split("\t") for line in done.stdout.splitlines())}
    assert len(peaks) > 10
    assert [name for name, size in peaks.items() if size >= MEGABYTES] == [
        name for name in peaks if "lambda" in name
    ]


def kept(piece: object, n: int, k: int) -> int:
    """Bytes that autograd keeps for the backward pass, each tensor once."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    logits = torch.randn(n, k, requires_grad=True)
    assert callable(piece)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        piece(logits, torch.randint(k, (n,)))
    return sum(sizes.values())


@pytest.mark.parametrize("piece", [DECE(), SECE(), CPC()], ids=str)
def test_what_is_kept_grows_with_the_classes_not_their_square(piece: object) -> None:
    assert kept(piece, 16, 2000) < 2.2 * kept(piece, 16, 1000)
