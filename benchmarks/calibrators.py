"""Speed and accuracy of fitted calibrators against peers in the same run; `--write` puts the tables into the docs.

Every method fits the same float32 logits on the CPU, in turns, so that what else runs on the machine slows all alike;
the ratio is the median over the turns. netcal gets float64 probabilities, since it does nothing with float32 ones;
probmetrics gets logits, scikit-learn a decision function. `--gpu` times `temperature` alone on a CUDA device.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.core.registry import lookup
from calibrant.core.temperature import fit_temperature
from tables import markdown, rewrite

warnings.filterwarnings("ignore")
HERE = str(Path(__file__).resolve().parent)
sys.path[:] = [p for p in sys.path if p != HERE]  # peers import packages called as our scripts are

SIZES = [(10_000, 10), (10_000, 100), (50_000, 1000), (1_000_000, 10)]
CLASSES = (10, 100)
CLOSE = 1e-3  # how near to the best ln T a solver must come to be compared
FREE = 10  # classes up to which a matrix without a penalty is tried: with 100 it memorises 10,000 rows, whoever fits it
Fit = Callable[[], Any]
Rows = tuple[Tensor, Tensor]


def overconfident(n: int, k: int) -> Rows:
    """Labels are drawn from the softmax of the logits divided by 1.5."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((n, k), generator=generator).mul_(3)
    return logits, drawn(logits / 1.5, generator)


def uneven(n: int, k: int, seed: int) -> Rows:
    """Classes with a scale and a bias of their own: what a vector can repair and a temperature cannot."""
    generator = torch.Generator().manual_seed(seed)
    shape = torch.Generator().manual_seed(99)
    scale = torch.randn(k, generator=shape).mul_(0.2).exp_().div_(1.5)
    bias = torch.randn(k, generator=shape).mul_(0.5)
    logits = torch.randn((n, k), generator=generator).mul_(3)
    return logits, drawn(logits * scale + bias, generator)


def drawn(truth: Tensor, generator: torch.Generator) -> Tensor:
    """A label for each row of logits."""
    ladder = truth.softmax(1).cumsum_(1)
    at = torch.rand((len(truth), 1), generator=generator) * ladder[:, -1:]
    return torch.searchsorted(ladder, at)[:, 0].clamp_(max=truth.shape[1] - 1)


def in_turns(
    fits: dict[str, Fit], budget: float, most: int = 7
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Milliseconds of each fit, each in turn, after one round to warm up; what fails is left out with a line."""
    taken: dict[str, list[float]] = {name: [] for name in fits}
    results: dict[str, Any] = {}
    began = time.perf_counter()
    for turn in range(most + 1):
        for name in list(taken):
            gc.collect()
            start = time.perf_counter()
            try:
                results[name] = fits[name]()
            except Exception as error:
                print(f"  {name}: {type(error).__name__}: {str(error)[:100]}", flush=True)
                del taken[name]
                continue
            if turn:
                taken[name].append(1000 * (time.perf_counter() - start))
        if turn >= 3 and time.perf_counter() - began > budget:
            break
    return taken, results


def ratio(taken: dict[str, list[float]], peer: str) -> float:
    """The median over the turns of the time of a peer in units of ours."""
    return statistics.median(b / a for a, b in zip(taken["calibrant"], taken[peer], strict=True))


def passing(classes: int) -> Any:
    """A fitted scikit-learn classifier whose decision function is what it is given."""
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Passing(ClassifierMixin, BaseEstimator):
        def fit(self, x: Any, y: Any = None) -> Any:
            self.classes_ = np.arange(classes)
            self.n_features_in_ = classes
            return self

        def decision_function(self, x: Any) -> Any:
            return x

        def predict(self, x: Any) -> Any:
            return self.classes_[np.argmax(x, axis=1)]

    return Passing().fit(None)


def scikit(method: str, logits: Tensor, labels: Tensor) -> Any:
    """scikit-learn by its public interface: the wrapped classifier is fitted already."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    model = CalibratedClassifierCV(FrozenEstimator(passing(logits.shape[1])), method=method, ensemble=False)
    return model.fit(logits.numpy(), labels.numpy())


def probmetrics(name: str, logits: Tensor, labels: Tensor, **options: Any) -> Any:
    """A calibrator of probmetrics, from logits."""
    import probmetrics.calibrators as peer
    from probmetrics.distributions import CategoricalLogits

    return getattr(peer, name)(**options).fit_torch(CategoricalLogits(logits), labels)


def lbfgs(logits: Tensor, labels: Tensor) -> float:
    """What torch-uncertainty does: 100 steps of torch's L-BFGS on 1/T with a learning rate of 0.1."""
    beta = torch.ones(1, requires_grad=True)
    solver = torch.optim.LBFGS([beta], lr=0.1, max_iter=100)

    def closure() -> Tensor:
        solver.zero_grad()
        loss = torch.nn.functional.cross_entropy(logits * beta, labels)
        loss.backward()
        return loss

    solver.step(closure)
    return 1 / float(beta.detach())


def temperature_peers(
    logits: Tensor, labels: Tensor
) -> tuple[dict[str, Fit], dict[str, Callable[[Any], float]]]:
    """Fits, and how their temperature is read."""
    from netcal.scaling import TemperatureScaling

    probs = logits.double().softmax(1).numpy() if logits.numel() <= 10_000_000 else None
    truth = labels.numpy()
    fits: dict[str, Fit] = {
        "scikit-learn": lambda: scikit("temperature", logits, labels),
        "probmetrics": lambda: probmetrics("TemperatureScalingCalibrator", logits, labels),
        "torch-uncertainty's algorithm": lambda: lbfgs(logits, labels),
    }
    if probs is not None:
        fits["netcal, float64"] = lambda: TemperatureScaling().fit(probs, truth)
    read: dict[str, Callable[[Any], float]] = {
        "scikit-learn": lambda m: 1 / m.calibrated_classifiers_[0].calibrators[0].beta_,
        "probmetrics": lambda m: 1 / float(m.invtemp_),
        "torch-uncertainty's algorithm": float,
        "netcal, float64": lambda m: 1 / float(m.temperature[0]),
    }
    return fits, read


def temperature_table(budget: float, write: bool) -> None:
    """Our temperature against every peer's: time, and how far ln T is from the best one."""
    ours = lookup("calibrators", "temperature")()
    rows = []
    for n, k in SIZES:
        logits, labels = overconfident(n, k)
        best = math.log(fit_temperature(logits.double(), labels).temperature)
        fits, read = temperature_peers(logits, labels)
        taken, results = in_turns({"calibrant": partial(ours.fit, logits, labels)} | fits, budget)
        read["calibrant"] = lambda fitted: float(fitted.state["temperature"])
        for name, times in taken.items():
            off = abs(math.log(read[name](results[name])) - best)
            row = [f"{n:,} x {k:,}", name, f"{statistics.median(times):.1f}", f"{off:.0e}"]
            row.append(
                "" if name == "calibrant" else f"{ratio(taken, name):.1f}" + ("" if off < CLOSE else " (far)")
            )
            rows.append(row)
            print("temperature", *row, flush=True)
        del logits, labels, fits, results
        gc.collect()
    if write:
        head = ["fit by", "rows x classes", "ms", "off the best ln T", "peer / calibrant"]
        rewrite(
            "calibrators.md", "calibrators-temperature", markdown(head, [[r[1], r[0], *r[2:]] for r in rows])
        )


def other_peers(
    name: str, logits: Tensor, labels: Tensor
) -> tuple[dict[str, Fit], dict[str, Callable[..., Any]]]:
    """Fits under the meaning of one of our calibrators, and their probabilities of other logits."""
    from netcal.binning import HistogramBinning, IsotonicRegression
    from probmetrics.distributions import CategoricalLogits

    probs, truth = logits.double().softmax(1).numpy(), labels.numpy()

    def by_torch(model: Any, z: Tensor) -> Any:
        return model.predict_proba_torch(CategoricalLogits(z)).get_probs()

    def by_numpy(model: Any, z: Tensor) -> Any:
        return torch.from_numpy(np.asarray(model.transform(z.double().softmax(1).numpy())))

    def by_scikit(model: Any, z: Tensor) -> Any:
        return torch.from_numpy(model.predict_proba(z.numpy()))

    fits: dict[str, dict[str, tuple[Fit, Callable[..., Any]]]] = {
        "vector": {"probmetrics": (lambda: probmetrics("VectorScalingCalibrator", logits, labels), by_torch)},
        "matrix": {"probmetrics": (lambda: probmetrics("MatrixScalingCalibrator", logits, labels), by_torch)},
        "matrix(strength=0)": {
            "probmetrics": (lambda: probmetrics("MatrixScalingCalibrator", logits, labels), by_torch)
        },
        "structured": {
            "probmetrics SMS": (
                lambda: probmetrics("SMSCalibrator", logits, labels, print_init_info=False),
                by_torch,
            )
        },
        "isotonic(share=1)": {
            "scikit-learn": (lambda: scikit("isotonic", logits, labels), by_scikit),
            "netcal": (lambda: IsotonicRegression().fit(probs, truth), by_numpy),
        },
        'histogram(target="classwise", share=1)': {
            "netcal": (lambda: HistogramBinning(15).fit(probs, truth), by_numpy),
        },
    }
    found = fits.get(name, {})
    return {peer: fit for peer, (fit, _) in found.items()}, {peer: use for peer, (_, use) in found.items()}


OTHERS = (
    "vector",
    "matrix(strength=0)",
    "matrix",
    "structured",
    "isotonic(share=1)",
    "isotonic",
    'histogram(target="classwise", share=1)',
    'histogram(target="classwise")',
)


def test_loss(probs: Tensor, labels: Tensor) -> float:
    """Log loss with probabilities of at least 1e-12, since some peers give a true class none."""
    p = probs.double().gather(1, labels[:, None])[:, 0]
    return float(-p.clamp_min(1e-12).log().mean())


def others_table(budget: float, write: bool) -> None:
    """Other calibrators, 10,000 rows: time to fit, and the log loss of 50,000 other rows."""
    from calibrant.core.spec import build

    rows = []
    for k in CLASSES:
        logits, labels = uneven(10_000, k, 0)
        held, truth = uneven(50_000, k, 1)
        print(f"none {k}", test_loss(held.softmax(1), truth), flush=True)
        for spec in OTHERS:
            if k > FREE and spec == "matrix(strength=0)":
                continue
            piece = build(spec, "calibrators")
            fits, use = other_peers(spec, logits, labels)
            taken, results = in_turns(
                {"calibrant": partial(piece.fit, logits, labels)} | fits, budget, most=5
            )
            use["calibrant"] = lambda fitted, z: fitted(z).softmax(1)
            losses = {name: test_loss(use[name](results[name], held), truth) for name in taken}
            for name, times in taken.items():
                row = [spec, str(k), name, f"{statistics.median(times):.0f}", f"{losses[name]:.4f}"]
                row.append("" if name == "calibrant" else f"{ratio(taken, name):.1f}")
                rows.append(row)
                print(*row, flush=True)
    if write:
        head = ["calibrator", "classes", "fit by", "ms", "test log loss", "peer / calibrant"]
        rewrite("calibrators.md", "calibrators-others", markdown(head, rows))


def gpu(n: int, k: int) -> None:
    """`temperature` on a CUDA device: rows made there block by block, one fit to warm up, the best of ten."""
    device = torch.device("cuda")
    generator = torch.Generator(device).manual_seed(0)
    logits = torch.empty(n, k, device=device)
    labels = torch.empty(n, dtype=torch.int64, device=device)
    step = max(1, (1 << 27) // k)
    for start in range(0, n, step):
        rows = slice(start, min(n, start + step))
        z = logits[rows].normal_(generator=generator).mul_(3)
        noise = torch.empty_like(z).exponential_(generator=generator).log_()
        labels[rows] = (
            noise.neg_().add_(z, alpha=1 / 1.5).argmax(1)
        )  # the largest of Gumbel noise and a logit
    piece = lookup("calibrators", "temperature")()
    fitted = piece.fit(logits, labels)
    taken = []
    for _ in range(10):
        torch.cuda.synchronize()
        start_time = time.perf_counter()
        fitted = piece.fit(logits, labels)
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - start_time)
    found = float(fitted.state["temperature"])
    print(
        f"{torch.cuda.get_device_name()}: temperature on {n:,} x {k:,} float32 in {statistics.median(taken):.3f} s"
    )
    print(
        f"best {min(taken):.3f} s, T = {found:.6f}, truth 1.5, peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"
    )


def main() -> None:
    """Run both tables, one of them with --only, or the device with --gpu."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["temperature", "others"])
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each size or calibrator")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/calibrators.md")
    parser.add_argument(
        "--gpu", action="store_true", help="time temperature on a CUDA device, and nothing else"
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows for --gpu")
    wanted = parser.parse_args()
    if wanted.gpu:
        gpu(wanted.rows, 1000)
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads", flush=True)
    if wanted.only in (None, "temperature"):
        temperature_table(wanted.budget, wanted.write)
    if wanted.only in (None, "others"):
        others_table(wanted.budget, wanted.write)


if __name__ == "__main__":
    main()
