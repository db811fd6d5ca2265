"""Calibrators around a classifier of scikit-learn: `CalibratedClassifier(RandomForestClassifier(), "isotonic")`.

Importing this module imports scikit-learn; nothing else of Calibrant does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from calibrant.core.calibration import Fitted, Procedure, warn
from calibrant.core.chain import calibrator
from calibrant.core.errors import InputError, SpecError
from calibrant.core.place import show

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
    from sklearn.frozen import FrozenEstimator
    from sklearn.model_selection import StratifiedShuffleSplit, check_cv
    from sklearn.utils import check_array, column_or_1d, get_tags, indexable
    from sklearn.utils.metaestimators import _safe_split
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise ImportError(
        "calibrant.interop.sklearn needs scikit-learn 1.6 or newer; pip install 'calibrant[sklearn]'"
    ) from error

Array = np.ndarray
LEAST = 1e-7
"""A probability below this counts as this: `predict_proba` of many classifiers says 0 of what they have not seen."""

_SEED = 0  # of the rows that are held out, so that two fits to the same rows are the same


class CalibratedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose probabilities go through a calibrator, fitted to rows that the classifier has not seen.

    `method` is a spec, as on the command line, or a calibrator. `cv` says where those rows come from. Folds (a number,
    a splitter of scikit-learn): out-of-fold predictions, and the classifier is then fitted to all rows; there is one
    calibrator, not an ensemble. A share such as 0.25: that much of each class is held out, and the classifier is fitted
    to the rest. A classifier that is fitted already is given as `FrozenEstimator(classifier)`; then all rows that `fit`
    gets serve the calibrator, and `cv` is not used. Fitted: `estimator_`, `calibrator_` (a `Fitted`, which saves and
    exports), `classes_`. Weights of rows are not taken, since no calibrator here has them.
    """

    def __init__(self, estimator: Any, method: str | Procedure = "temperature", *, cv: Any = 5) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv

    def fit(self, X: Any, y: Any) -> CalibratedClassifier:
        """Fit the classifier and its calibrator, or the calibrator alone where the classifier is frozen."""
        procedure = self._procedure()
        if y is None:
            raise InputError("CalibratedClassifier requires y to be passed, but the target y is None")
        X, y = indexable(X, y)
        y = column_or_1d(check_array(y, ensure_2d=False, dtype=None, input_name="y"), warn=True)
        check_classification_targets(y)
        if isinstance(self.estimator, FrozenEstimator):
            self.estimator_ = self.estimator
            self.classes_ = np.asarray(self.estimator.classes_)
            labels = self._labels(y)
            logits = self._logits(self.estimator_, X)
        else:
            self.classes_, labels = np.unique(y, return_inverse=True)
            if len(self.classes_) < 2:
                raise InputError(
                    f"y has 1 class, {show(self.classes_[0])!r}, and a classifier needs at least 2 classes; add rows"
                )
            logits, labels = self._held_out(X, y, labels)
        if hasattr(self.estimator_, "n_features_in_"):
            self.n_features_in_ = self.estimator_.n_features_in_
        if hasattr(self.estimator_, "feature_names_in_"):
            self.feature_names_in_ = self.estimator_.feature_names_in_
        self.calibrator_: Fitted = procedure.fit(logits, labels)
        return self

    def predict_proba(self, X: Any) -> Array:
        """Calibrated probabilities of all classes, in the order of `classes_`."""
        check_is_fitted(self)
        found = self.calibrator_(self._logits(self.estimator_, X))
        assert isinstance(found, Tensor), "fit has refused top-label calibrators"
        probs: Array = found.softmax(1).numpy()
        return probs

    def predict(self, X: Any) -> Array:
        """The class of the highest calibrated probability."""
        check_is_fitted(self)
        best: Array = self.classes_[self.predict_proba(X).argmax(1)]
        return best

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator).input_tags
        tags.input_tags.sparse, tags.input_tags.pairwise = inner.sparse, inner.pairwise
        tags.input_tags.allow_nan, tags.input_tags.string = inner.allow_nan, inner.string
        return tags

    def _procedure(self) -> Procedure:
        procedure = calibrator(self.method) if isinstance(self.method, str) else self.method
        if not isinstance(procedure, Procedure):
            raise SpecError(
                f"method is a spec such as 'temperature', or a calibrator, not {show(self.method)!r}"
            )
        if procedure.scope == "top":
            raise SpecError(
                f"predict_proba needs a probability of every class, and {procedure} gives one of the predicted class"
                ' alone; take a calibrator of all classes, such as temperature or histogram(target="classwise")'
            )
        return procedure

    def _labels(self, y: Array) -> Array:
        """Places of labels among the classes of a classifier that was fitted elsewhere."""
        place = {each: i for i, each in enumerate(self.classes_.tolist())}
        try:
            return np.array([place[each] for each in y.tolist()], dtype=np.int64)
        except KeyError as error:
            raise InputError(
                f"y has the class {show(error.args[0])!r}, which the frozen classifier does not know; leave it out"
            ) from None

    def _held_out(self, X: Any, y: Array, labels: Array) -> tuple[Array, Array]:
        """Fit the classifier, and give logits of rows that it, or its clone for a fold, has not seen."""
        parts = []
        for train, test, last in self._splits(X, y, labels):
            model = clone(self.estimator)
            x_train, y_train = _safe_split(model, X, y, train)
            x_test, _ = _safe_split(model, X, y, test, train)
            parts.append((self._logits(model.fit(x_train, y_train), x_test), labels[test]))
            if last:
                self.estimator_ = model
        if not isinstance(self.cv, float):
            self.estimator_ = clone(self.estimator).fit(X, y)
        logits, labels = (np.concatenate(each) for each in zip(*parts, strict=True))
        known = logits[np.arange(len(labels)), labels] > -np.inf
        if not known.all():
            warn(
                f"{len(known) - known.sum()} rows are of a class that no row of their training fold has; the"
                " calibrator is fitted without them"
            )
        if not known.any():
            raise InputError(
                "no fold has trained on the class of any row that it holds out; take fewer folds"
            )
        return logits[known], labels[known]

    def _splits(self, X: Any, y: Array, labels: Array) -> Iterator[tuple[Array, Array, bool]]:
        """Rows to train on and rows to hold out, and whether the classifier of the former is the one that is kept."""
        if isinstance(self.cv, float):
            if not 0 < self.cv < 1:
                raise InputError(f"cv as a share of rows lies between 0 and 1, and {self.cv:g} does not")
            splitter = StratifiedShuffleSplit(1, test_size=self.cv, random_state=_SEED)
            for train, test in splitter.split(np.zeros((len(labels), 1)), labels):
                yield train, test, True
            return
        if isinstance(self.cv, str):
            raise InputError(
                f"cv={self.cv!r} is no way to split rows; a classifier that is fitted already is given as"
                " FrozenEstimator(classifier)"
            )
        for train, test in check_cv(self.cv, y, classifier=True).split(X, y):
            yield train, test, False

    def _logits(self, model: Any, X: Any) -> Array:
        """What a classifier says, as logits in the order of `classes_`; -inf for a class that it was not shown."""
        name = type(model.estimator if isinstance(model, FrozenEstimator) else model).__name__
        if hasattr(model, "decision_function") and not _of_pairs(model):
            found = np.asarray(model.decision_function(X), dtype=np.float64)
            found = np.stack([-found / 2, found / 2], 1) if found.ndim == 1 else found
        elif hasattr(model, "predict_proba"):
            found = np.log(np.maximum(np.asarray(model.predict_proba(X), dtype=np.float64), LEAST))
        else:
            raise InputError(
                f"{name} has neither decision_function nor predict_proba, and its labels alone cannot be calibrated"
            )
        known = np.asarray(model.classes_)
        if found.ndim != 2 or found.shape[1] != len(known):
            raise InputError(
                f"{name} gives {show(list(found.shape))} for {len(known)} classes, and one column a class is wanted"
            )
        if np.array_equal(known, self.classes_):
            return found
        logits = np.full((len(found), len(self.classes_)), -np.inf)
        logits[:, np.searchsorted(self.classes_, known)] = found
        return logits


def _of_pairs(model: Any) -> bool:
    """Whether decision values are of pairs of classes; three classes have three, so the shape would not show it."""
    inner = getattr(model, "estimator", model)
    return getattr(inner, "decision_function_shape", None) == "ovo" and len(model.classes_) > 2
