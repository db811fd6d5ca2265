"""Kernel sums on a grid against the sums that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from calibrant.core.kernels import (
    Stencil,
    beta_log_kernel,
    cosine_coefficients,
    gaussian_cells,
    gaussian_sums,
    reflected_gaussian,
)

POINTS = np.concatenate([[0.0, 1.0, 1e-12, 1 - 1e-12, 0.5], np.random.default_rng(0).random(200)])
numbers = st.floats(-3, 3)


@given(st.tuples(numbers, numbers, numbers, numbers), st.integers(4, 300))
def test_reading_reproduces_cubics(coefficients: tuple[float, ...], cells: int) -> None:
    cubic = np.polynomial.Polynomial(coefficients)
    found = Stencil(POINTS, cells).read(cubic(np.arange(cells + 1) / cells))
    np.testing.assert_allclose(found, cubic(POINTS), rtol=0, atol=1e-12)  # some roundings of numbers up to 12


def test_reading_at_a_node_gives_the_node() -> None:
    values = np.random.default_rng(1).random(65)
    np.testing.assert_allclose(Stencil(np.arange(65) / 64, 64).read(values), values, rtol=0, atol=1e-15)


def test_reading_takes_leading_axes() -> None:
    values = np.random.default_rng(1).random((3, 65))
    grid = Stencil(POINTS, 64)
    assert np.array_equal(grid.read(values), np.stack([grid.read(row) for row in values]))


@pytest.mark.parametrize("cells", [4, 64, 4096])
def test_spreading_keeps_mass_and_moments(cells: int) -> None:
    mass = np.random.default_rng(2).standard_normal(len(POINTS))
    grid, nodes = Stencil(POINTS, cells), np.arange(cells + 1) / cells
    spread = grid.spread(mass)
    for power in range(4):  # cubic weights keep what a cubic can see
        assert spread @ nodes**power == pytest.approx(mass @ POINTS**power, abs=1e-11)
    np.testing.assert_allclose(grid.spread(), grid.spread(np.ones(len(POINTS))), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bandwidth", [0.01, 0.1, 10.0])
def test_gaussian_sums_are_the_double_sum(bandwidth: float) -> None:
    cells = gaussian_cells(bandwidth)
    nodes = np.arange(cells + 1) / cells
    mass = np.random.default_rng(3).random((2, cells + 1))
    direct = mass @ np.exp(-0.5 * ((nodes[:, None] - nodes) / bandwidth) ** 2)
    np.testing.assert_allclose(gaussian_sums(mass, bandwidth), direct, rtol=0, atol=1e-11 * mass.sum())


@pytest.mark.parametrize("bandwidth", [0.01, 0.05, 0.5])
def test_spread_smooth_read_is_the_kernel_sum_at_the_points(bandwidth: float) -> None:
    mass = np.random.default_rng(4).random(len(POINTS))
    grid = Stencil(POINTS, gaussian_cells(bandwidth))
    found = grid.read(gaussian_sums(grid.spread(mass), bandwidth))
    direct = np.exp(-0.5 * ((POINTS[:, None] - POINTS) / bandwidth) ** 2) @ mass
    # cubic interpolation, twice, of a function whose scale is 64 cells: 3/128 (1/64)^4 * 3, next to a kernel of 1
    np.testing.assert_allclose(found, direct, rtol=0, atol=1e-8 * mass.sum())


def test_cosine_coefficients_are_cosine_sums() -> None:
    m = 32
    mass = np.random.default_rng(5).standard_normal((3, m + 1))
    k, x = np.arange(m + 1), np.arange(m + 1) / m
    direct = mass @ np.cos(np.pi * np.outer(x, k))
    np.testing.assert_allclose(cosine_coefficients(mass), direct, rtol=0, atol=1e-12)


@pytest.mark.parametrize("width", [0.03, 0.2, 1.0])
def test_reflected_gaussian_is_the_sum_over_images(width: float) -> None:
    m = 512
    points, mass = np.array([0, 7, 100, 500, m]), np.array([0.3, -1.0, 2.0, 0.5, 1.0])
    nodes = np.arange(m + 1) / m
    on_grid = np.zeros(m + 1)
    on_grid[points] = mass
    direct = np.zeros(m + 1)
    for at, weight in zip(points / m, mass, strict=True):
        for image in range(-8, 9):  # eight reflections either way: at width 1 the next is exp(-128)
            direct += weight * stats.norm.pdf(nodes, 2 * image + at, width)
            direct += weight * stats.norm.pdf(nodes, 2 * image - at, width)
    found = reflected_gaussian(cosine_coefficients(on_grid[None]), np.array([width]))[0]
    np.testing.assert_allclose(found, direct, rtol=0, atol=1e-9 * np.abs(direct).max())
    trapezoid = np.full(m + 1, 1 / m)
    trapezoid[[0, -1]] /= 2
    assert found @ trapezoid == pytest.approx(mass.sum(), abs=1e-12)  # reflection keeps all mass inside


def test_beta_kernel_is_the_beta_density() -> None:
    at = np.array([0.0, 1e-9, 0.2, 0.5, 0.999, 1.0])
    centre = np.array([0.0, 0.01, 0.5, 0.99, 1.0])
    for bandwidth in (0.001, 0.02, 0.5, 5.0):
        found = beta_log_kernel(at, centre, bandwidth)
        truth = stats.beta.logpdf(at[:, None], centre / bandwidth + 1, (1 - centre) / bandwidth + 1)
        np.testing.assert_allclose(
            found, truth, rtol=1e-9, atol=1e-9
        )  # differences of logs of size 1/bandwidth
