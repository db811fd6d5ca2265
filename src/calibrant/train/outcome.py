"""What a run leaves behind: predictions, what each training row was like, weights, and at last DONE."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from calibrant.core.predictions import Predictions
from calibrant.core.samples import Samples
from calibrant.core.tensor_file import save_tensors
from calibrant.train import checkpoint, directory
from calibrant.train.checkpoint import Progress
from calibrant.train.measure import predict
from calibrant.train.session import Session


def finish(session: Session, progress: Progress, where: Path) -> None:
    """Predictions in float32, what each training row was like, weights, and DONE."""
    run, name = session.run, session.published.name
    if run.recipe.select != "last":
        session.predictor.load_state_dict(session.best)
    (where / "predictions").mkdir(exist_ok=True)
    epoch = progress.best_epoch or run.recipe.epochs
    for part in ("val", "test", "meta"):
        samples: Samples = getattr(session.splits, part)
        if not len(samples):
            continue
        meta = {
            "split": part,
            "run": run.id,
            "dataset": name,
            "model": run.model,
            "seed": run.seed,
            "loss": run.loss,
        }
        logits = _exact(session, samples)
        made = Predictions(
            logits.cpu(), samples.labels.cpu(), ids=samples.ids.numpy(), meta={**meta, "epoch": epoch}
        )
        made.save(where / "predictions" / f"{part}.npz")
    train = session.splits.train
    learned = {
        "ids": train.ids.numpy(),
        "labels": train.labels.cpu().numpy(),
        "learned_epoch": session.step.tally.last_wrong.cpu().numpy() + 1,
        "max_logit": _exact(session, train).amax(1).cpu().numpy(),
    }
    directory.write_arrays(where / "learned.npz", learned)
    weights = {**session.predictor.state_dict(), **session.preparation.tensors()}
    shape = session.published.shape
    about = {
        "run": run.id,
        "model": run.model,
        "classes": list(session.published.classes),
        "input": {"kind": shape.kind, "size": list(shape.size), "vocabulary": shape.vocabulary},
        "epoch": epoch,
    }
    save_tensors(where / "weights.safetensors", "weights", weights, about)
    directory.write_history(where, progress.history)
    directory.write_json(where / "DONE", {"run": run.id, "epoch": epoch, "select": run.recipe.select})
    checkpoint.remove(where)


def _exact(session: Session, samples: Samples) -> Tensor:
    """Logits computed in float32 throughout: near confidence 1, half precision would itself be miscalibration."""
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        return predict(session.predictor, session.preparation, samples)
    finally:
        torch.backends.cudnn.allow_tf32 = allowed
