"""Isotonic regression: scikit-learn beside it, golden numbers, ties, and how far a map for each class is trusted."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression
from torch import Tensor

from calibrant.calibrators.held_out import best_share
from calibrant.calibrators.isotonic import Isotonic
from calibrant.calibrators.lookup import halved
from calibrant.calibrators.temperature import Temperature
from calibrant.core.binning import width_index
from calibrant.core.calibration import Top
from calibrant.core.rows import row_keys
from calibrant.metrics import ECE, NLL, Brier

Data = tuple[Tensor, Tensor]


def test_golden_of_the_top_label(golden: Callable[..., Any], stored: Callable[[str], Data]) -> None:
    records = golden("c_iso_top1")
    assert records
    for record in records:
        logits, labels = stored(record["apply_to"])
        top = Isotonic("top").fit(*stored(record["input"]))(logits)
        assert isinstance(top, Top)
        q, a, wanted = top.confidence.double(), (top.predicted == labels).double(), record["golden"]
        # 1e-7 is the floor; the least squares fit is unique
        np.testing.assert_allclose(q[:10], wanted["first10"], atol=2e-7)
        gaps = torch.zeros(15, dtype=torch.float64).index_add_(0, width_index(q, 15), q - a)
        assert float(gaps.abs().sum() / len(q)) == pytest.approx(wanted["ece15"], abs=1e-6)
        assert float(((q - a) ** 2).mean()) == pytest.approx(wanted["brier_pair"], abs=1e-6)
        assert float(q.mean()) == pytest.approx(wanted["mean_conf"], abs=1e-6)


def test_golden_of_one_against_the_rest(golden: Callable[..., Any], stored: Callable[[str], Data]) -> None:
    (record,) = golden("c_iso_ovr")
    logits, labels = stored(record["apply_to"])
    out = Isotonic(share=1).fit(*stored(record["input"]))(logits)
    assert isinstance(out, Tensor)
    probs, wanted = out.softmax(1), record["golden"]
    np.testing.assert_allclose(probs[0], wanted["row0"], atol=2e-6)  # ten floors of 1e-7 in the total
    assert ECE()(out, labels).value == pytest.approx(wanted["ece15"], abs=2e-6)
    assert Brier()(out, labels).value == pytest.approx(wanted["brier"], abs=2e-6)
    at_label = probs.gather(1, labels[:, None])[:, 0]
    floored = at_label < 5e-7  # the golden numbers have 0 there, and 1e-12 in their log loss
    assert int(floored.sum()) == wanted["zero_true"]
    loss = -torch.where(floored, 1e-12, at_label).log().mean()
    assert float(loss) == pytest.approx(wanted["nll"], abs=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_that_of_scikit_learn(dtype: torch.dtype, draw_overconfident: Callable[..., Data]) -> None:
    logits, labels = draw_overconfident(400, 5, 3, dtype)
    logits = (2 * logits).round() / 2  # ties
    fitted = Isotonic(share=1).fit(logits, labels)
    fresh, _ = draw_overconfident(300, 5, 4, dtype)
    out = fitted(fresh)
    assert isinstance(out, Tensor)
    probs, new = logits.softmax(1).double().numpy(), fresh.softmax(1).double().numpy()
    columns = [
        IsotonicRegression(out_of_bounds="clip").fit(probs[:, k], labels == k).predict(new[:, k])
        for k in range(5)
    ]
    wanted = np.clip(np.stack(columns, 1), 1e-7, 1 - 1e-7)
    # float32 moves a score by 6e-8 and a steep piece of the map by as much as its slope times that; what is a tie in
    # one softmax may not be one in the other
    tolerance = 1e-12 if dtype == torch.float64 else 2e-4
    np.testing.assert_allclose(out.softmax(1), wanted / wanted.sum(1, keepdims=True), atol=tolerance)


def test_halving_finds_the_same_places() -> None:
    generator = torch.Generator().manual_seed(0)
    for many in (0, 1, 2, 3, 7, 8, 30):
        edges = torch.rand(4, many, generator=generator).sort(1).values
        scores = torch.rand(50, 4, generator=generator)
        scores[:many] = edges.t()
        wanted = torch.searchsorted(edges, scores.t().contiguous()).t()
        assert torch.equal(halved(edges, scores), wanted)


def test_it_exports_as_it_stands(draw_overconfident: Callable[..., Data]) -> None:
    logits, labels = draw_overconfident(300, 4, 3)
    fitted = Isotonic(share=0.7).fit(logits, labels)

    class Module(torch.nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            out = fitted.calibrator.apply(fitted.state, z)
            assert isinstance(out, Tensor)
            return out

    exported = torch.export.export(Module(), (logits,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    torch.testing.assert_close(exported.module()(logits[:7]), fitted(logits[:7]))


def test_scores_that_are_almost_zero_give_numbers() -> None:
    """A naive Bayes model says 1e-310: between two such scores a slope overflows."""
    low = torch.log(torch.tensor([1e-300, 1e-310, 3e-311, 0.2, 1e-320, 0.6], dtype=torch.float64))
    logits = torch.stack([torch.zeros_like(low), low], 1).repeat(2, 1)
    labels = torch.tensor([1, 0, 1, 1, 0, 1] * 2)
    out = Isotonic(share=1).fit(logits, labels)(logits)
    assert isinstance(out, Tensor)
    assert bool(out.isfinite().all())


def test_it_does_not_destroy_a_model(is_harmless: Callable[[str], bool]) -> None:
    assert is_harmless("isotonic")


def test_share_0_is_temperature_scaling(stored: Callable[[str], Data]) -> None:
    logits, labels = stored("over_f64")
    out, scaled = Isotonic(share=0).fit(logits, labels)(logits), Temperature().fit(logits, labels)(logits)
    assert isinstance(out, Tensor)
    assert isinstance(scaled, Tensor)
    torch.testing.assert_close(out, scaled.log_softmax(1))


def test_what_temperature_cannot_repair_is_learned(draw_overconfident: Callable[..., Data]) -> None:
    def biased(n: int, seed: int) -> Data:
        logits, labels = draw_overconfident(n, 3, seed, torch.float64)
        return logits + torch.tensor([2.0, 0.0, -1.0]), labels

    fit, (logits, labels) = biased(4000, 1), biased(4000, 2)
    fitted = Isotonic().fit(*fit)
    ours, scaled, raw = (
        NLL()(f(logits), labels).value for f in (fitted, Temperature().fit(*fit), lambda z: z)
    )
    assert 0.5 < float(fitted.state["share"]) < 1
    assert ours < scaled - 0.05 < raw - 0.05


def test_the_best_share_is_that_of_a_search() -> None:
    generator = torch.Generator().manual_seed(0)
    h, p = torch.rand(2, 50, generator=generator, dtype=torch.float64)
    grid = torch.arange(0, 1, 1e-4, dtype=torch.float64)
    values = (p + grid[:, None] * (h - p)).log().mean(1) + (1 - grid).log() / 50
    assert best_share(h, p, 50) == pytest.approx(float(grid[values.argmax()]), abs=1e-4)
    assert best_share(p / 2, p, 50) < 1e-6
    assert best_share(p.new_ones(50), p * 0.01, 50) < 1


def test_halves_are_those_of_the_content(stored: Callable[[str], Data]) -> None:
    logits, labels = stored("over_f64")
    keys, turned = (
        row_keys(logits, labels),
        torch.randperm(len(labels), generator=torch.Generator().manual_seed(1)),
    )
    assert torch.equal(row_keys(logits[turned], labels[turned]), keys[turned])
    assert torch.equal(row_keys(logits.float(), labels), keys)
    assert abs(float((keys & 1).double().mean()) - 0.5) < 0.05  # 3 standard errors of 1,000 rows
    assert len(keys.unique()) == len(keys)


def test_one_row_changes_nothing() -> None:
    logits = torch.tensor([[1.0, 0.5, -torch.inf]])
    with pytest.warns(UserWarning, match="every row is right"):
        out = Isotonic().fit(logits, torch.tensor([0]))(logits)
    assert isinstance(out, Tensor)
    torch.testing.assert_close(out.softmax(1), logits.softmax(1))
