"""Verdicts, arrows and agreement with print, from cells that are made up."""

import math

import pytest
from scipy import stats
from tests.study.conftest import TOY

from calibrant.study import Grid, grid, read
from calibrant.study.answer import answer
from calibrant.study.store import Record
from calibrant.study.tables import csv_text, markdown, tex

HIGH = [0.050, 0.052, 0.051, 0.049, 0.050]
LOW = [0.030, 0.031, 0.029, 0.030, 0.032]
MIXED = [0.020, 0.090, 0.040, 0.055, 0.0472]


def study(judge: str, need: str = "all") -> Grid:
    text = TOY.replace('focal = "focal(gamma=3)"', 'focal = "focal(gamma=3)"\nbrier = "brier"')
    text = text.replace('judge = "ece after temperature: focal < ce"', f'judge = {judge}\nneed = "{need}"')
    return grid(read(text, "toy"), {"seeds": "5"})


def records(found: Grid, ece: dict[str, list[float]]) -> dict[str, Record]:
    """Cells whose ECE is given by level, and by seed; the other numbers are a tenth of it."""
    made = {}
    for cell in found.cells:
        values = ece[dict(cell.point.at)["loss"]]
        if cell.point.seed < len(values):
            value = values[cell.point.seed]
            numbers = {"ece(bins=15)": value, "error": value / 10, "nll": None, "temperature": 10 * value}
            made[cell.key] = Record(numbers, {"nll": "infinite: so it is"}, "0" * 64)
    return made


def verdict(judge: str, need: str = "all", **ece: list[float]) -> str:
    found = study(judge, need)
    return str(
        answer(found, records(found, {"ce": HIGH, "focal": LOW, "brier": MIXED, **ece}))["claims"][0][
            "verdict"
        ]
    )


@pytest.mark.parametrize(
    ("judge", "need", "wanted"),
    [
        ('"ece raw: focal < ce"', "all", "holds"),
        ('"ece raw: ce < focal"', "all", "fails"),
        ('"ece raw: focal > ce"', "all", "fails"),
        ('"ece raw: brier < ce"', "all", "undecided"),
        ('"ece raw: focal < ce, brier"', "all", "undecided"),
        ('"ece raw: ce < focal, brier"', "all", "fails"),
        (
            '["ece raw: focal < ce", "ece after temperature: focal < ce", "ece raw: brier < ce"]',
            "most",
            "holds",
        ),
        ('["ece raw: ce < focal", "ece raw: brier < ce"]', "most", "fails"),
        ('["ece raw: focal < ce", "ece raw: brier < ce"]', "most", "undecided"),
        ('"ece raw: ce > 0"', "all", "holds"),
        ('"error raw < ece after temperature: ce, focal"', "all", "holds"),
        ('"error raw > ece after temperature: ce"', "all", "fails"),
        ('"ece raw: ce < 0.04"', "all", "fails"),
        ('"ece raw: ce < focal + 0.03"', "all", "holds"),
        ('"ece raw: ce < focal + 0.01"', "all", "fails"),
        ('"ece raw: focal < ce - 0.03"', "all", "fails"),
        ('"temperature after temperature: ce > 0.4"', "all", "holds"),
    ],
)
def test_verdicts(judge: str, need: str, wanted: str) -> None:
    assert verdict(judge, need) == wanted


def test_one_seed_decides_nothing_and_missing_seeds_are_left_out_in_pairs() -> None:
    assert verdict('"ece raw: focal < ce"', focal=LOW[:1]) == "undecided"
    found = study('"ece raw: focal < ce"')
    row = answer(found, records(found, {"ce": HIGH, "focal": LOW[:3], "brier": []}))["claims"][0][
        "comparisons"
    ][0]
    oracle = stats.ttest_rel(LOW[:3], HIGH[:3])
    assert row["n"] == 3
    assert row["p"] == pytest.approx(oracle.pvalue, rel=1e-9)
    assert verdict('"ece raw: focal < ce"', focal=[], ce=[]) == "undecided"


def test_a_margin_is_part_of_the_difference() -> None:
    found = study('"ece raw: focal < ce + 0.01"')
    document = answer(found, records(found, {"ce": HIGH, "focal": LOW, "brier": MIXED}))
    row = document["claims"][0]["comparisons"][0]
    assert row["difference"] == pytest.approx(sum(LOW) / 5 - sum(HIGH) / 5 - 0.01)
    assert "ece(bins=15) raw: focal < ce + 0.01" in markdown(document)
    found = study('"error raw < ece after temperature: ce"')
    document = answer(found, records(found, {"ce": HIGH, "focal": LOW, "brier": MIXED}))
    assert "error raw < ece(bins=15) after temperature: ce" in markdown(document)
    assert document["claims"][0]["comparisons"][0]["difference"] == pytest.approx(-0.9 * sum(HIGH) / 5)


def test_many_comparisons_are_corrected() -> None:
    found = study('["ece raw: focal < ce", "ece raw: brier < ce", "ece raw: brier < focal"]')
    rows = answer(found, records(found, {"ce": HIGH, "focal": LOW, "brier": MIXED}))["claims"][0][
        "comparisons"
    ]
    least = min(row["p"] for row in rows)
    assert min(row["p_holm"] for row in rows) == pytest.approx(3 * least, rel=1e-12)


def test_arrows_are_those_of_the_two_sample_test() -> None:
    found = study('"ece raw: focal < ce"')
    table = answer(found, records(found, {"ce": HIGH, "focal": LOW, "brier": MIXED}))["table"]
    arrows = {row["at"]["loss"]: row["arrow"] for row in table if row["quantity"] == "ece(bins=15)"}
    assert stats.ttest_ind(LOW, HIGH).pvalue < 0.05 < stats.ttest_ind(MIXED, HIGH).pvalue
    higher = sum(MIXED) > sum(HIGH)
    assert arrows == {"ce": "", "focal": "▼", "brier": "△" if higher else "▽"}


def test_published_numbers_are_compared_by_both_deviations() -> None:
    found = study('"ece raw: focal < ce"')

    def verdicts(**ece: list[float]) -> dict[str, str]:
        document = answer(found, records(found, {"brier": [], **ece}))
        return {row["at"]["loss"]: row["verdict"] for row in document["published"]}

    assert verdicts(ce=[0.0303, 0.0304], focal=[0.0100, 0.0102]) == {"ce": "within", "focal": "within"}
    assert verdicts(ce=[0.02, 0.0201], focal=[0.02, 0.0201]) == {"ce": "better", "focal": "worse"}
    assert verdicts(ce=[0.02], focal=[]) == {"ce": "one seed", "focal": "not measured"}
    edge = 0.0303 + 2 * math.hypot(0.0016, math.sqrt(2) * 0.001)
    measured = [edge - 1e-9 - 0.001, edge - 1e-9 + 0.001]
    assert verdicts(ce=measured, focal=[])["ce"] == "within"
    assert verdicts(ce=[value + 2e-9 for value in measured], focal=[])["ce"] == "worse"


def test_the_files_say_the_scale_and_every_number_its_source() -> None:
    found = study('"ece raw: focal < ce"')
    made = records(found, {"ce": HIGH, "focal": LOW, "brier": MIXED})
    document = answer(found, made)
    text = markdown(document)
    assert "not the document's scale: toy" in text
    assert "neither confirm nor refute" in text
    assert "| raw | 5.04 ± 0.11 | 3.04 ± 0.11 ▼ | 5.04 ± 2.57 △ |" in text
    assert r"3.04 $\pm$ 0.11 $\blacktriangledown$" in tex(document)
    assert "nll after temperature: infinite: so it is (15 cells)" in text
    lines = csv_text(found, made).splitlines()
    assert lines[0] == "study,scale,loss,seed,calibrator,metric,value,run,cell,predictions"
    first = found.cells[0]
    run = first.point.run.id
    assert lines[3] == f"toy,tiny,ce,0,raw,ece(bins=15),0.05,{run},{first.key},{'0' * 64}"
    assert sum(line.split(",")[5] == "temperature" for line in lines) == 15
