"""Predictions in memory: what is kept, what is shared, what is derived, what the hash sees."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

import calibrant as cal
from calibrant.core.checks import SUM_TOLERANCE
from calibrant.core.errors import InputError
from calibrant.core.predictions import Predictions, TopLabel

Array = np.ndarray[Any, Any]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def made(
    n: int = 40, k: int = 5, dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, k, generator=generator, dtype=torch.float64)
    return logits.to(dtype), torch.randint(k, (n,), generator=generator)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_types_are_kept_and_memory_is_shared(dtype: torch.dtype) -> None:
    logits, labels = made(dtype=dtype)
    predictions = Predictions(logits, labels)
    assert predictions.logits.dtype == dtype
    assert predictions.logits.data_ptr() == logits.data_ptr()
    assert predictions.labels.data_ptr() == labels.data_ptr()
    assert (predictions.n, predictions.classes, predictions.source) == (40, 5, "memory")


def test_numpy_is_shared_and_lists_are_float64() -> None:
    logits = np.zeros((3, 2), np.float32)
    assert Predictions(logits, np.zeros(3, int)).logits.data_ptr() == logits.ctypes.data
    from_lists = Predictions([[1, 2.5], [3, 4]], [0, 1])
    assert from_lists.logits.dtype == torch.float64
    assert from_lists.logits.tolist() == [[1.0, 2.5], [3.0, 4.0]]
    assert Predictions([[1, 2], [3, 4]], [0, 1]).logits.dtype == torch.float64


@pytest.mark.parametrize("kind", ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", ">i4", ">i8"])
def test_every_integer_type_is_a_label(kind: str) -> None:
    labels = np.array([0, 1, 2, 1], kind)
    assert Predictions(np.zeros((4, 3), np.float32), labels).labels.tolist() == [0, 1, 2, 1]


@pytest.mark.parametrize(
    "case", ["read-only", "big-endian", "reversed", "unaligned", "strided", "fortran", "gradient"]
)
def test_unusual_memory(case: str) -> None:
    logits, labels = made()
    array: Any = logits.numpy().copy()
    expected = array.copy()
    if case == "read-only":
        array.flags.writeable = False
    elif case == "big-endian":
        array = array.astype(">f4")
    elif case == "reversed":
        array = array[::-1].copy()[::-1]
    elif case == "unaligned":
        array = np.frombuffer(bytearray(b"x" + array.tobytes()), np.float32, offset=1).reshape(40, 5)
        assert not array.flags.aligned
    elif case == "strided":
        array = np.repeat(array, 2, axis=0)[::2]
    elif case == "fortran":
        array = np.asfortranarray(array)
    else:
        array = torch.from_numpy(array).requires_grad_()
    predictions = Predictions(array, labels)
    assert np.array_equal(predictions.logits.numpy(), expected)
    assert predictions.sha256 == Predictions(expected, labels).sha256


def test_mask_is_a_class_that_cannot_be() -> None:
    ninf = float("-inf")
    predictions = Predictions([[0.0, ninf, 1.0], [ninf, 2.0, ninf]], [2, 1])
    assert predictions.logits.isneginf().sum() == 3


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_probabilities_are_kept_to_the_last_bit(dtype: torch.dtype) -> None:
    logits, labels = made(dtype=dtype)
    probs = torch.softmax(logits, dim=1)
    predictions = Predictions.from_probs(probs, labels)
    assert predictions.probs is not None
    assert predictions.probs.data_ptr() == probs.data_ptr()
    half = dtype in (torch.float16, torch.bfloat16)
    assert torch.equal(predictions.logits, (probs.float() if half else probs).log())
    assert predictions.meta == {"from": "probs"}


def test_exact_bin_edges_do_not_move() -> None:
    edges = np.arange(8, 16) / 15
    predictions = Predictions.from_probs(np.stack([edges, 1 - edges], 1), np.zeros(8, int))
    assert predictions.probs is not None
    assert predictions.probs[:, 0].tolist() == edges.tolist()


def test_true_class_of_probability_zero_is_allowed_from_probs_only() -> None:
    predictions = Predictions.from_probs([[1.0, 0.0], [0.5, 0.5]], [1, 0])
    assert predictions.logits[0, 1] == -torch.inf
    with pytest.raises(InputError, match="masks the true class"):
        Predictions(predictions.logits, predictions.labels)


@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_softmax_of_every_type_sums_to_one(dtype: torch.dtype, classes: int) -> None:
    """A softmax computed in a type and one rounded to it, plain or by hand, uses at most a third of the tolerance."""
    logits, labels = made(2000, classes, torch.float64)
    own = 3 * logits.to(dtype)
    powers = (own - own.amax(dim=1, keepdim=True)).exp()
    for probs in (own.softmax(1), (3 * logits).softmax(1).to(dtype), powers / powers.sum(1, keepdim=True)):
        assert (probs.double().sum(1) - 1).abs().max() < SUM_TOLERANCE[dtype] / 3
        assert Predictions.from_probs(probs, labels).n == 2000


@pytest.mark.parametrize("factor", [2.0, 0.5, 1.1, 0.9])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_not_normalised_is_refused(dtype: torch.dtype, factor: float) -> None:
    logits, labels = made(classes := 50, 10, dtype)
    with pytest.raises(InputError, match=r"sums to|leaves \[0, 1\]"):
        Predictions.from_probs(torch.softmax(logits, dim=1) * factor, labels)
    assert classes == len(labels)


def test_printed_probabilities_pass() -> None:
    logits, labels = made(500, 100, torch.float64)
    assert Predictions.from_probs(torch.softmax(logits, 1).numpy().round(6), labels).n == 500


def test_binary() -> None:
    predictions = Predictions.from_binary([0.0, 0.3, 1.0], [0, 1, 1])
    assert predictions.probs is not None
    assert predictions.probs.tolist() == [[1.0, 0.0], [0.7, 0.3], [0.0, 1.0]]
    assert predictions.classes == 2


@pytest.mark.parametrize(
    "correct", [[True, False], [1, 0], np.array([1, 0], np.uint8), torch.tensor([True, False])]
)
def test_top_label(correct: Any) -> None:
    pairs = TopLabel([0.5, 1.0], correct)
    assert pairs.confidence.dtype == torch.float64
    assert pairs.correct.dtype == torch.bool
    assert pairs.correct.tolist() == [True, False]
    assert (pairs.n, pairs.source) == (2, "memory")


def test_ids_are_integers_or_texts() -> None:
    logits, labels = made(3, 2)
    assert Predictions(logits, labels, ids=np.array([5, 7, 6], np.uint8)).ids.dtype == np.int64  # type: ignore[union-attr]
    wide = Predictions(logits, labels, ids=np.array(["a", "bc", "d"], "<U50"))
    assert wide.ids is not None
    assert wide.ids.dtype == "<U2"
    assert wide.sha256 == Predictions(logits, labels, ids=np.array(["a", "bc", "d"], object)).sha256
    assert Predictions(logits, labels, ids=torch.tensor([3, 1, 2])).ids.tolist() == [3, 1, 2]  # type: ignore[union-attr]


def test_meta_is_a_copy() -> None:
    logits, labels = made()
    meta = {"split": "test", "seeds": (1, 2), "deep": {"a": [None, 1.5, True]}}
    predictions = Predictions(logits, labels, meta=meta)
    meta["split"] = "val"
    assert predictions.meta == {"split": "test", "seeds": [1, 2], "deep": {"a": [None, 1.5, True]}}


def test_frozen() -> None:
    predictions = Predictions(*made())
    with pytest.raises(dataclasses.FrozenInstanceError):
        predictions.labels = predictions.labels  # type: ignore[misc]


def test_replace_checks_again() -> None:
    logits, labels = made()
    predictions = Predictions(logits, labels, meta={"run": 1})
    other = dataclasses.replace(predictions, logits=2 * logits)
    assert torch.equal(other.logits, 2 * logits)
    assert other.meta == {"run": 1}
    with pytest.raises(InputError, match="has NaN"):
        dataclasses.replace(predictions, logits=logits * torch.nan)
    pairs = TopLabel([0.5], [1])
    assert dataclasses.replace(pairs, confidence=[0.25]).confidence.tolist() == [0.25]


def test_top_label_calibration_is_kept_beside_the_logits() -> None:
    logits, labels = made(3, 2)
    predictions = Predictions(logits, labels, confidence=[0.5, 0.6, 1.0], predicted=[0, 1, 1])
    assert predictions.confidence is not None
    assert predictions.predicted is not None
    assert predictions.confidence.tolist() == [0.5, 0.6, 1.0]
    assert predictions.predicted.dtype == torch.int64


def test_hash_sees_everything_but_the_source() -> None:
    logits, labels = made(3, 2)
    base: dict[str, Any] = {"logits": logits, "labels": labels, "ids": [1, 2, 3], "meta": {"a": 1}}
    base |= {"confidence": [0.5, 0.6, 0.7], "predicted": [0, 1, 0], "probs": logits.softmax(1)}
    changed: list[dict[str, Any]] = [
        {"logits": logits.double()},
        {"logits": torch.nextafter(logits, logits + 1)},
        {"labels": 1 - labels},
        {"ids": None},
        {"ids": ["1", "2", "3"]},
        {"meta": {"a": 2}},
        {"confidence": [0.5, 0.6, 0.8]},
        {"predicted": [0, 1, 1]},
        {"probs": None},
        {"probs": torch.nextafter(logits.softmax(1), torch.ones(()))},
    ]
    hashes = [Predictions(**{**base, **change}).sha256 for change in [{}, *changed]]
    assert len(set(hashes)) == len(hashes)
    assert Predictions(**base, source="elsewhere").sha256 == hashes[0]
    assert all(len(found) == 64 for found in hashes)
    assert TopLabel([0.5], [1]).sha256 != TopLabel([0.5], [0]).sha256


def test_hash_is_that_of_version_1() -> None:
    """Files on disk carry this hash: if it changes, so must the schema version."""
    predictions = Predictions([[1.0, 2.0], [3.0, 4.5]], [0, 1], ids=["a", "b"], meta={"split": "test"})
    assert predictions.sha256 == "03f652a9b74d6b4fcfc49a38ca024481d35f5ac05b22c4b9cdf6ace41a482944"


def test_shown_and_copied() -> None:
    predictions = Predictions(*made())
    assert repr(predictions) == "Predictions(n=40, classes=5, float32, source='memory')"
    assert repr(TopLabel([0.5], [1])) == "TopLabel(n=1, source='memory')"
    assert copy.deepcopy(predictions).sha256 == predictions.sha256


def test_public_names() -> None:
    assert cal.Predictions is Predictions
    assert cal.TopLabel is TopLabel


def test_one_row_and_two_classes_are_enough() -> None:
    assert Predictions([[0.0, 1.0]], [1]).n == 1
