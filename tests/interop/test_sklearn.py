"""`CalibratedClassifier` is a classifier of scikit-learn, and its calibrator is the one that the library fits."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Perceptron
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold, cross_val_predict
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

import calibrant as cal
from calibrant.calibrators import Vector
from calibrant.core.calibration import CalibrationWarning
from calibrant.core.errors import CalibrantError
from calibrant.core.registry import describe
from calibrant.interop.sklearn import LEAST, CalibratedClassifier

Array = np.ndarray
NAMES = np.array(["ant", "bee", "cat", "dog"])


def data(n: int = 600, classes: int = 3, seed: int = 0) -> tuple[Array, Array]:
    X, y = make_classification(
        n, 8, n_informative=5, n_classes=classes, flip_y=0.2, class_sep=0.6, random_state=seed
    )
    return X, NAMES[y]


def halves(n: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Rows to fit to, and others of the same kind."""
    X, y = data(n)
    return (X[: n // 2], y[: n // 2]), (X[n // 2 :], y[n // 2 :])


def through(method: Any, logits: Array, labels: Array, new: Array) -> Array:
    """Probabilities of a calibrator of ours, fitted to logits and labels as numbers."""
    found = cal.calibrator(method).fit(logits, np.searchsorted(NAMES, labels))(new)
    return np.asarray(found.softmax(1))


few_rows = pytest.mark.filterwarnings("ignore::calibrant.core.calibration.CalibrationWarning")
"""The rows of scikit-learn's checks are few, and their labels are often random."""


@few_rows
@parametrize_with_checks(
    [CalibratedClassifier(LogisticRegression()), CalibratedClassifier(LogisticRegression(), "isotonic")]
)
def test_scikit_learn_takes_it_for_its_own(estimator: Any, check: Any) -> None:
    assert check(estimator) is None


@few_rows
@pytest.mark.slow
@parametrize_with_checks(
    [
        CalibratedClassifier(LogisticRegression(), "auto"),
        CalibratedClassifier(GaussianNB(), "vector > irm", cv=0.3),
        CalibratedClassifier(DecisionTreeClassifier(random_state=0), "beta"),
    ]
)
def test_it_does_so_whatever_the_method(estimator: Any, check: Any) -> None:
    assert check(estimator) is None


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "model", [LogisticRegression(), GaussianNB(), RandomForestClassifier(30, random_state=0)]
)
def test_identity_gives_the_probabilities_of_the_model(classes: int, model: Any) -> None:
    X, y = data(classes=classes)
    wrapped = CalibratedClassifier(model, "identity", cv=3).fit(X, y)
    wanted = np.maximum(model.fit(X, y).predict_proba(X), LEAST)
    np.testing.assert_allclose(
        wrapped.predict_proba(X), wanted / wanted.sum(1, keepdims=True), rtol=1e-9, atol=1e-12
    )
    assert wrapped.classes_.tolist() == NAMES[:classes].tolist()
    assert wrapped.predict(X).tolist() == wrapped.classes_[wrapped.predict_proba(X).argmax(1)].tolist()


@pytest.mark.parametrize("cv", [3, StratifiedKFold(4, shuffle=True, random_state=1), KFold(3)], ids=str)
@pytest.mark.parametrize("method", ["temperature", "vector > isotonic"])
def test_folds_are_out_of_fold_predictions(cv: Any, method: str) -> None:
    X, y = data()
    model = LogisticRegression()
    logits = cross_val_predict(model, X, y, cv=cv, method="decision_function")
    wanted = through(method, logits, y, model.fit(X, y).decision_function(X))
    found = CalibratedClassifier(model, method, cv=cv).fit(X, y).predict_proba(X)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)  # folds come in another order of rows


def test_two_classes_are_one_margin() -> None:
    X, y = data(classes=2)
    model = LogisticRegression().fit(X, y)
    margin = model.decision_function(X)
    wrapped = CalibratedClassifier(FrozenEstimator(model)).fit(X, y)
    temperature = float(wrapped.calibrator_.state["temperature"])
    np.testing.assert_allclose(
        wrapped.predict_proba(X)[:, 1], 1 / (1 + np.exp(-margin / temperature)), rtol=1e-9
    )


def test_temperature_is_that_of_scikit_learn() -> None:
    X, y = data(2000)
    theirs = CalibratedClassifierCV(LogisticRegression(), method="temperature", ensemble=False, cv=3).fit(
        X, y
    )
    ours = CalibratedClassifier(LogisticRegression(), cv=3).fit(X, y)
    # Their search for the temperature stops at some 1e-5.
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), rtol=0, atol=1e-4)


def test_a_frozen_model_is_not_fitted_again() -> None:
    (X, y), (new, labels) = halves(600)
    model = LogisticRegression().fit(X, y)
    before = model.coef_.copy()
    wrapped = CalibratedClassifier(FrozenEstimator(model)).fit(new, labels)
    wanted = through("temperature", model.decision_function(new), labels, model.decision_function(X))
    np.testing.assert_allclose(wrapped.predict_proba(X), wanted, rtol=1e-12)
    assert np.array_equal(model.coef_, before)
    some = CalibratedClassifier(FrozenEstimator(model)).fit(new[labels != "cat"], labels[labels != "cat"])
    assert some.classes_.tolist() == ["ant", "bee", "cat"]
    assert some.predict_proba(X).shape == (len(X), 3)


def test_a_share_is_held_out() -> None:
    class Recorder(BaseEstimator):
        """Remembers what it was fitted to, and says of every row whether it was among it."""

        def fit(self, X: Array, y: Array) -> Any:
            self.rows_, self.classes_ = X[:, 0].tolist(), np.unique(y)
            return self

        def predict_proba(self, X: Array) -> Array:
            assert not set(X[:, 0]) & set(self.rows_)
            return np.full((len(X), len(self.classes_)), 1 / len(self.classes_))

    X, y = data(200)
    wrapped = CalibratedClassifier(Recorder(), "identity", cv=0.25).fit(X, y)
    assert len(wrapped.estimator_.rows_) == 150
    assert wrapped.calibrator_.provenance["n"] == 50
    again = CalibratedClassifier(Recorder(), "identity", cv=0.25).fit(X, y)
    assert again.estimator_.rows_ == wrapped.estimator_.rows_


def test_a_class_that_a_fold_lacks_keeps_its_column() -> None:
    X, y = data(300)
    y = y.copy()
    y[0] = "dog"  # one row: no fold that holds it out has seen its class
    wrapped = CalibratedClassifier(LogisticRegression(), cv=KFold(3))
    with pytest.warns(
        CalibrationWarning, match="1 rows are of a class that no row of their training fold has"
    ):
        wrapped.fit(X, y)
    assert wrapped.classes_.tolist() == NAMES.tolist()
    assert wrapped.calibrator_.provenance["n"] == 299
    probs = wrapped.predict_proba(X)
    assert (probs > 0).all()
    np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-12)


@pytest.mark.parametrize("name", [entry.name for entry in describe("calibrators")])
def test_every_calibrator_of_all_classes_can_be_its_method(name: str) -> None:
    X, y = data(300)
    wrapped = CalibratedClassifier(DecisionTreeClassifier(max_depth=4, random_state=0), name, cv=3)
    if cal.calibrator(name).scope == "top":
        with pytest.raises(CalibrantError, match="take a calibrator of all classes"):
            wrapped.fit(X, y)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        probs = wrapped.fit(X, y).predict_proba(X)
    assert probs.shape == (300, 3)
    np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-12)


def test_it_repairs_naive_bayes() -> None:
    (X, y), (new, true) = halves(2000)
    X, new = np.hstack([X] * 4), np.hstack([new] * 4)  # it believes everything four times
    raw = GaussianNB().fit(X, y)
    wrapped = CalibratedClassifier(GaussianNB(), "auto").fit(X, y)
    assert log_loss(true, wrapped.predict_proba(new)) < log_loss(true, raw.predict_proba(new)) - 0.1


def test_a_grid_search_chooses_the_method() -> None:
    X, y = data()
    pipeline = make_pipeline(StandardScaler(), CalibratedClassifier(GaussianNB(), cv=3))
    grid = {"calibratedclassifier__method": ["identity", "temperature", Vector()]}
    found = GridSearchCV(pipeline, grid, scoring="neg_log_loss", cv=3).fit(X, y)
    assert found.best_params_["calibratedclassifier__method"] != "identity"
    assert found.predict(X).shape == y.shape
    assert clone(found.best_estimator_).get_params()["calibratedclassifier__cv"] == 3


def test_a_pipeline_may_be_inside_and_rows_may_be_texts() -> None:
    texts = ["a good film", "a bad film", "good", "bad", "so good", "so bad"] * 10
    labels = ["yes", "no"] * 30
    inside = make_pipeline(CountVectorizer(), LogisticRegression())
    wrapped = CalibratedClassifier(inside, "platt", cv=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        wrapped.fit(texts, labels)
    assert wrapped.predict(["good film", "so bad"]).tolist() == ["yes", "no"]
    assert not hasattr(wrapped, "n_features_in_")


def test_the_calibrator_is_one_file(tmp_path: Any) -> None:
    X, y = data()
    wrapped = CalibratedClassifier(LogisticRegression()).fit(X, y)
    wrapped.calibrator_.save(tmp_path / "cal.safetensors")
    logits = wrapped.estimator_.decision_function(X)
    found = cal.load_calibrator(tmp_path / "cal.safetensors")(logits)
    np.testing.assert_array_equal(np.asarray(found.softmax(1)), wrapped.predict_proba(X))


def test_names_of_features_come_from_the_model() -> None:
    """As they do from a table of pandas, with which scikit-learn's own checks try it where pandas is installed."""

    class Named(BaseEstimator):
        def fit(self, X: Array, y: Array) -> Any:
            self.classes_, self.n_features_in_ = np.unique(y), X.shape[1]
            self.feature_names_in_ = np.array([f"x{i}" for i in range(X.shape[1])], dtype=object)
            return self

        def decision_function(self, X: Array) -> Array:
            return X[:, : len(self.classes_)]

    X, y = data()
    wrapped = CalibratedClassifier(Named(), "identity", cv=3).fit(X, y)
    assert wrapped.feature_names_in_.tolist() == [f"x{i}" for i in range(8)]
    assert wrapped.n_features_in_ == 8


def test_decision_values_of_pairs_are_not_logits() -> None:
    X, y = data(300)
    with pytest.raises(CalibrantError, match="SVC has neither decision_function nor predict_proba"):
        CalibratedClassifier(SVC(decision_function_shape="ovo")).fit(X, y)
    wrapped = CalibratedClassifier(SVC()).fit(X, y)
    assert wrapped.predict_proba(X).shape == (300, 3)


class Silent(BaseEstimator):
    """Labels only."""

    def fit(self, X: Array, y: Array) -> Any:
        self.classes_ = np.unique(y)
        return self


class Odd(Silent):
    """A column too many."""

    def predict_proba(self, X: Array) -> Array:
        return np.full((len(X), len(self.classes_) + 1), 0.25)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (CalibratedClassifier(Silent()), "Silent has neither decision_function nor predict_proba"),
        (CalibratedClassifier(Odd()), r"Odd gives \[120, 4\] for 3 classes"),
        (CalibratedClassifier(Perceptron(), "histogram"), 'histogram\\(target="classwise"\\)'),
        (CalibratedClassifier(Perceptron(), "temprature"), "did you mean 'temperature'"),
        (CalibratedClassifier(Perceptron(), 3), "method is a spec such as 'temperature'"),
        (CalibratedClassifier(Perceptron(), cv=1.5), "cv as a share of rows lies between 0 and 1"),
        (CalibratedClassifier(Perceptron(), cv="prefit"), r"FrozenEstimator\(classifier\)"),
        (
            CalibratedClassifier(FrozenEstimator(LogisticRegression().fit(*data(classes=2)))),
            "the class 'cat'",
        ),
    ],
    ids=range(8),
)
def test_wrong_use_is_told_in_a_sentence(made: Any, told: str) -> None:
    X, y = data()
    with pytest.raises(CalibrantError, match=told) as caught:
        made.fit(X, y)
    assert "\n" not in str(caught.value)


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_scikit_learn_is_loaded_by_this_module_alone() -> None:
    assert (
        run("import sys, calibrant, calibrant.interop; calibrant.calibrator; print('sklearn' in sys.modules)")
        == "False"
    )


def test_without_scikit_learn_a_sentence_says_what_to_install() -> None:
    code = "import sys; sys.modules['sklearn.base'] = None\ntry:\n    import calibrant.interop.sklearn\n"
    told = run(code + "except ImportError as error:\n    print(error)")
    assert (
        told == "calibrant.interop.sklearn needs scikit-learn 1.6 or newer; pip install 'calibrant[sklearn]'"
    )
