"""text_cnn: padding counts nowhere, a fresh one is a bag of words, and a trained one is near the true posterior."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from calibrant.core.samples import Classifier, InputShape
from calibrant.data import SyntheticText
from calibrant.models import TextCNN
from calibrant.models.text_cnn import halved
from calibrant.train import Run, recipe, train

SHAPE = InputShape("text", (13,), 40)


def awake(seed: int = 0) -> Classifier:
    """A network whose pairs do something: their last gains are 1 in place of 0."""
    torch.manual_seed(seed)
    made = TextCNN(width=8).make(SHAPE, 5)
    with torch.no_grad():
        for name, value in made.named_parameters():
            if name.endswith("norms.1.weight"):
                value.fill_(1)
            if name.endswith("bias"):
                value.normal_()  # at 0 a mask that is forgotten would not show
    return made.eval()


def texts() -> Tensor:
    """Texts of every length from 0 to 13."""
    tokens = torch.randint(1, 40, (14, 13), generator=torch.Generator().manual_seed(2)).int()
    return tokens * (torch.arange(13) < torch.arange(14)[:, None])


def test_padding_counts_nowhere() -> None:
    made, inputs = awake(), texts()
    with torch.no_grad():
        logits = made(inputs)
        for more in (1, 2, 3, 30):
            longer = torch.cat([inputs, torch.zeros(14, more, dtype=torch.int32)], 1)
            # sums of more zeros, in float32
            torch.testing.assert_close(made(longer), logits, rtol=1e-4, atol=1e-5)
        for length in range(1, 14):
            alone = made(inputs[length : length + 1, :length])
            torch.testing.assert_close(alone, logits[length : length + 1], rtol=1e-4, atol=1e-5)


def test_a_token_counts_also_at_the_ends() -> None:
    made, inputs = awake(), texts()[13:]
    with torch.no_grad():
        logits = made(inputs)
        for place in range(13):
            other = inputs.clone()
            other[0, place] = 1 + other[0, place] % 39
            assert float((made(other) - logits).abs().max()) > 1e-3


def test_an_empty_text_has_the_logits_of_no_word() -> None:
    made = awake()
    with torch.no_grad():
        empty = torch.zeros(1, 13, dtype=torch.int32)
        expected = made.head(made.norm(torch.zeros(1, 8)))
        assert torch.equal(made(empty), expected)


def test_a_fresh_network_is_a_bag_of_words() -> None:
    """The gains of the last norms are 0, and so the features are those of means over pairs of neighbours alone."""
    torch.manual_seed(0)
    made = TextCNN(width=8).make(SHAPE, 5).eval()
    inputs = texts()
    with torch.no_grad():
        for row, text in enumerate(inputs):
            cells = [made.embedding(token) for token in text if token]
            for _ in range(2):
                cells = [sum(cells[at : at + 2]) / len(cells[at : at + 2]) for at in range(0, len(cells), 2)]
            mean = sum(cells) / len(cells) if cells else torch.zeros(8)
            torch.testing.assert_close(made.features(inputs[row : row + 1]), made.norm(mean[None]))


def test_halving_is_the_mean_of_those_that_are_there() -> None:
    x = torch.tensor([[1.0, 3.0, 5.0, 0.0, 0.0]])[:, :, None]
    there = torch.tensor([[1.0, 1.0, 1.0, 0.0, 0.0]])[:, :, None]
    found, left = halved(x, there)
    assert found[0, :, 0].tolist() == [2, 5, 0]
    assert left[0, :, 0].tolist() == [1, 1, 0]


def test_words_are_lost_in_training_only() -> None:
    torch.manual_seed(0)
    made = TextCNN(width=8, drop_words=0.5, dropout=0).make(SHAPE, 5)
    inputs = texts()
    made.train()
    assert not torch.equal(made(inputs), made(inputs))
    made.eval()
    assert torch.equal(made(inputs), made(inputs))


def test_trained_on_generated_texts_it_comes_near_the_best_there_is(tmp_path: Path) -> None:
    data = "synthetic-text(classes=4, rows=3000, test=1000, length=24, vocabulary=300, signal=0.25)"
    run = Run(data=data, model="text_cnn(width=16)", recipe=recipe("text", epochs=6))
    error = train(run, tmp_path / "run", device="cpu").history[-1]["test_error"]
    source = SyntheticText(classes=4, rows=3000, test=1000, length=24, vocabulary=300, signal=0.25)
    test = source.load().test
    best = float((source.posterior(test.inputs).argmax(1) != test.labels).double().mean())
    # 2,400 texts do not tell 4 x 298 probabilities; what was seen is under half of this distance
    assert best - 0.02 < error < best + 0.12 < 0.5
