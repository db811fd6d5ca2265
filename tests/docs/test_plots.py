"""The curves of the losses page: what they show is right, and the drawing keeps what it shows."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
import torch

from calibrant.core.objective import KINDS, PerSample
from calibrant.core.registry import Entry, describe
from docs import hooks, plots

ENTRIES = [entry for kind in KINDS for entry in describe(kind)]
SVG = "{http://www.w3.org/2000/svg}"


def test_curves_of_cross_entropy_are_known() -> None:
    ce = plots.curve("ce")
    assert ce.gradient == pytest.approx([p - 1 for p in ce.p], abs=1e-12)
    assert min(ce.loss) > 0
    assert ce.loss == sorted(ce.loss, reverse=True)
    assert (ce.p[0], ce.p[-1]) == pytest.approx((plots.EDGE, 1 - plots.EDGE))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_loss_penalty_and_surrogate_has_a_figure(entry: Entry) -> None:
    shown = plots.entry_plot(entry)
    assert shown is not None
    assert "\n" not in shown  # Markdown would end the block at an empty line
    assert "nan" not in shown
    svg = ElementTree.fromstring(shown).find(f"{SVG}svg")
    assert svg is not None
    names = {text.text for text in svg.iter(f"{SVG}text")}
    left = "loss" if issubclass(entry.piece, PerSample) else "added to the batch"
    assert {left, "gradient on the true class's logit", "p"} <= names
    assert names >= set(getattr(entry.piece, "drawn", (entry.name,)))
    assert {path.get("stroke") for path in svg.iter(f"{SVG}path")} >= {"currentColor", plots.COLOURS[0]}


def test_a_row_in_a_batch_is_shown_as_a_row() -> None:
    """The mean over rows is the one thing that both ways of drawing know: CPC of rows is a mean, and so is its loss."""
    drawn, p = plots.curve("cpc(exclusion=0)"), torch.linspace(plots.EDGE, 1 - plots.EDGE, plots.POINTS)
    own = torch.logit(p.double()) + torch.tensor(plots.OTHERS).logsumexp(0)
    known = -torch.nn.functional.logsigmoid(own[:, None] - torch.tensor(plots.OTHERS)).mean(1)
    assert drawn.in_batch
    assert drawn.loss == pytest.approx((known - known.min()).tolist(), abs=1e-4)  # linspace is float32 here
    slope = (drawn.loss[101] - drawn.loss[99]) / float(own[101] - own[99])
    assert drawn.gradient[100] == pytest.approx(slope, rel=1e-3)  # second order of a step of 0.03
    assert not plots.curve("focal + 0.1*entropy").in_batch


def test_metrics_have_no_figure() -> None:
    assert [plots.entry_plot(entry) for entry in describe("metrics")] == [None] * len(describe("metrics"))


def test_lines_stay_in_their_panels() -> None:
    shown = plots.figure(["ce", "logit_norm"], reference=False, label="two")
    svg = ElementTree.fromstring(shown).find(f"{SVG}svg")
    assert svg is not None
    *_, width, height = (float(part) for part in svg.attrib["viewBox"].split())
    for path in svg.iter(f"{SVG}path"):
        points = re.findall(r"(-?[\d.]+) (-?[\d.]+)", path.attrib["d"])
        assert points
        assert all(0 <= float(x) <= width and 0 <= float(y) <= height for x, y in points)


def test_left_out_points_are_on_the_line() -> None:
    points = [(float(x), 0.01 * x * x) for x in range(101)]
    few = plots.simplified(points, 0.5)
    assert len(few) < 20
    assert (few[0], few[-1]) == (points[0], points[-1])
    for x, y in points:
        left, right = next((a, b) for a, b in pairwise(few) if a[0] <= x <= b[0])
        share = (x - left[0]) / (right[0] - left[0])
        assert (
            abs(left[1] + share * (right[1] - left[1]) - y) <= 1.2
        )  # 0.5 across the line, which rises by 2 at most
    assert plots.simplified(points[:2]) == points[:2]


@pytest.mark.parametrize(
    "values", [[[0.1, 3.7]], [[-1.2, 0.0]], [[-3e-4, 5e-4]], [[0.0, 0.0]], [[12.0, 19.0]]]
)
def test_axes_hold_zero_and_have_round_ticks(values: list[list[float]]) -> None:
    low, high, ticks = plots.axis(values)
    assert low <= min(0, *values[0]) <= max(0, *values[0]) <= high
    assert 0 in ticks
    assert 1 <= len(ticks) <= 7
    assert all(len(plots.number(tick)) <= 8 for tick in ticks)


def test_a_curve_that_leaves_the_panel_is_cut_at_its_border() -> None:
    runs = plots.visible([(0, -10.0), (1, 10.0), (2, 10.0), (3, 30.0), (4, 10.0)], 0, 20)
    assert runs == [[(0.5, 0), (1, 10.0), (2, 10.0), (2.5, 20)], [(3.5, 20), (4, 10.0)]]


def test_the_marker_for_a_figure() -> None:
    page = hooks.on_page_markdown("a\n\n<!-- plot:ce, focal(gamma=3) -->\n\nb")
    assert page.startswith("a\n\n<figure")
    assert "focal(gamma=3)</text>" in page
    assert page.endswith("</figure>\n\nb")
