"""Nothing is learned, and nothing is changed."""

import torch

from calibrant.calibrators import Identity


def test_logits_leave_as_they_came() -> None:
    logits = torch.tensor([[1.0, -torch.inf, 0.5], [0.1, 0.2, 0.3]])
    fitted = Identity().fit(logits, torch.tensor([0, 1]))
    assert dict(fitted.state) == {}
    assert torch.equal(fitted(logits), logits)
    assert fitted(logits) is not logits
    assert Identity().scope == "full"
    assert Identity().keeps_argmax
