"""What is seen while a study runs, in a terminal and in a log."""

import io

import pytest
from rich.console import Console

from calibrant.report.study import LiveStudy, duration


def seen(view: LiveStudy) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(view.shown())
    return out.getvalue()


def test_a_terminal_shows_states_the_best_and_what_is_left() -> None:
    view = LiveStudy(Console(file=io.StringIO(), force_terminal=True, width=100))
    with view:
        for number in range(20):
            view.update(f"run {number}", "waiting", "", 0, 20)
        view.update("run 0", "training", "epoch 2/5, 3 s left", 0, 20, 0.2)
        view.update("run 1", "done", "ece 1.00 %", 1, 20, 0.2)
        view.update("run 2", "failed", "lower the learning rate", 2, 20, 0.2)
        view.note_best("ece raw", 0.02, "run 1", "2.00 %")
        view.note_best("ece raw", 0.01, "run 3", "1.00 %")
        view.note_best("ece raw", 0.03, "run 4", "3.00 %")
        text = seen(view)
    assert [line.split()[2] for line in text.splitlines()[1:4]] == ["training", "done", "failed"]
    assert "17 more waiting" in text
    assert "least ece raw so far: 1.00 % (run 3)" in text
    assert "2.2/20 runs" in text


def test_many_runs_fit_into_a_screen() -> None:
    view = LiveStudy(Console(file=io.StringIO(), force_terminal=True))
    for number in range(300):
        view.update(f"run {number}", "done", "", number, 300)
    assert len(seen(view).splitlines()) < 20
    assert "run 299" in seen(view)


def test_a_log_has_a_line_for_each_run_that_is_over() -> None:
    out = io.StringIO()
    with LiveStudy(Console(file=out, width=100)) as view:
        view.update("run 0", "waiting", "", 0, 2)
        view.update("run 0", "training", "epoch 1/2", 0, 2, 0.5)
        view.update("run 0", "done", "ece 1.00 %", 1, 2)
    assert out.getvalue() == "1/2 run 0: done; ece 1.00 %\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (40, "40 s"), (720, "12 min"), (12600, "3.5 h"), (4.2 * 86400, "4.2 days")],
)
def test_an_estimate_has_few_digits(seconds: float, text: str) -> None:
    assert duration(seconds) == text
