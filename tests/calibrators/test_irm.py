"""Accuracy-preserving isotonic regression: scikit-learn on all pairs, the order of classes, K = 100 with few rows."""

from collections.abc import Callable

import numpy as np
import torch
from sklearn.isotonic import IsotonicRegression
from torch import Tensor

from calibrant.calibrators.irm import IRM
from calibrant.calibrators.isotonic import Isotonic

Data = tuple[Tensor, Tensor]


def test_it_is_one_isotonic_fit_to_all_pairs(draw_overconfident: Callable[..., Data]) -> None:
    logits, labels = draw_overconfident(300, 6, 3, torch.float64)
    probs = logits.softmax(1)
    hits = torch.nn.functional.one_hot(labels, 6)
    oracle = IsotonicRegression(out_of_bounds="clip").fit(probs.flatten(), hits.flatten())
    wanted = np.clip(oracle.predict(probs.flatten()).reshape(300, 6), 1e-7, 1 - 1e-7)
    out = IRM(share=1).fit(logits, labels)(logits)
    assert isinstance(out, Tensor)
    # a tie of the predicted class is broken by 8 units in the last place of float64
    np.testing.assert_allclose(out.softmax(1), wanted / wanted.sum(1, keepdims=True), atol=1e-12)


def test_the_order_of_the_classes_stays(draw_overconfident: Callable[..., Data]) -> None:
    logits, labels = draw_overconfident(2000, 10, 3)
    logits[:, 4] += 1  # so that temperature is not all
    fitted = IRM(share=0.9).fit(logits, labels)
    out = fitted(logits)
    assert isinstance(out, Tensor)
    assert torch.equal(out.argmax(1), logits.argmax(1))
    ranked = out.gather(1, logits.argsort(1))
    assert bool((ranked.diff(dim=1) >= -1e-5).all())  # float32 rounding of a logarithm near 20
    for share in (None, 1.0):
        again = IRM(share=share).fit(logits, labels)(logits)
        assert isinstance(again, Tensor)
        assert torch.equal(again.argmax(1), logits.argmax(1))


def test_with_two_symmetric_classes_it_is_isotonic(draw_overconfident: Callable[..., Data]) -> None:
    logits, labels = draw_overconfident(500, 2, 3, torch.float64)
    both = torch.cat([logits, logits.flip(1)]), torch.cat([labels, 1 - labels])
    ours, each = IRM(share=1).fit(*both)(logits), Isotonic(share=1).fit(*both)(logits)
    assert isinstance(ours, Tensor)
    assert isinstance(each, Tensor)
    # the two maps are one; p_0 and 1 - p_1 differ by rounding, which a steep piece of the map multiplies
    torch.testing.assert_close(ours.softmax(1), each.softmax(1), rtol=0, atol=1e-9)


def test_it_does_not_destroy_a_model(is_harmless: Callable[[str], bool]) -> None:
    assert is_harmless("irm")
