"""Learning-rate schedules."""

import math

import pytest
import torch

from conftest import quick, quick_pixels
from ducats.data.streets import streets
from ducats.data.toy import toy
from ducats.run.factory import make_run_plan, make_schedule
from ducats.training.schedules import SCHEDULES, poly


@pytest.mark.parametrize("power", [0.9, 1.0, 2.0])
@pytest.mark.parametrize("horizon", [1, 7, 62_500])
def test_poly_reaches_zero_at_its_horizon(power: float, horizon: int) -> None:
    for step in {0, 1, horizon // 2, horizon - 1}:
        assert poly(step, horizon=horizon, power=power) == pytest.approx((1 - step / horizon) ** power)
    assert poly(0, horizon=horizon, power=power) == 1.0
    for beyond in (horizon, horizon + 1, 10 * horizon):
        assert poly(beyond, horizon=horizon, power=power) == 0.0
    rates = [
        poly(step, horizon=horizon, power=power) for step in range(0, horizon + 1, max(1, horizon // 50))
    ]
    assert rates == sorted(rates, reverse=True)


def test_the_published_schedule() -> None:
    """lr (1 - it / 62500)^0.9, stopped at 50000, where it is 23.5 % of the initial value."""
    assert poly(50_000, horizon=62_500) == pytest.approx(math.exp(0.9 * math.log(0.2)))
    assert poly(50_000, horizon=62_500) == pytest.approx(0.235, abs=5e-4)


@pytest.mark.parametrize(("steps", "horizon"), [(50_000, 62_500), (8, 10), (10, 13), (1, 2)])
def test_the_default_horizon_is_1_25_times_the_steps(steps: int, horizon: int) -> None:
    schedule = make_schedule(quick_pixels(), steps)
    for step in (0, steps // 2, steps - 1, steps):
        assert schedule(step) == poly(step, horizon=horizon)
    assert schedule(steps) > 0  # the rate is positive at the last step


def test_an_explicit_horizon_is_used() -> None:
    schedule = make_schedule(quick_pixels("train.schedule.params={horizon: 100, power: 1.0}"), 8)
    assert schedule(25) == pytest.approx(0.75)


def test_the_plan_computes_the_steps() -> None:
    data = streets(n_source=6, n_pool=5, n_test=0, height=16, width=32)
    assert make_run_plan(quick_pixels(), data).schedule(4) == poly(4, horizon=10)  # 4 epochs of 2
    # By default, an epoch is full batches of the larger of source and pool.
    plan = make_run_plan(quick_pixels("train.steps_per_epoch=null"), data)
    assert plan.schedule(4) == poly(4, horizon=15)  # 4 epochs of 3
    # 4 epochs of 3; two schedules have no horizon.
    rates = {n: make_run_plan(quick(f"train.schedule.name={n}"), toy()).schedule(3) for n in SCHEDULES}
    assert rates == pytest.approx(
        {
            "inverse_decay": 1.003**-0.75,
            "poly": (1 - 3 / 15) ** 0.9,
            "cosine": math.cos(math.pi / 8) ** 2,  # a quarter of the way
            "constant": 1.0,
        }
    )


def test_warm_up_and_cosine_equal_torch() -> None:
    """With torch's ramp times its cosine, which are applied at the same time."""
    steps, warmup = 40, 8
    schedule = make_schedule(
        quick("train.schedule.name=cosine", f"train.warmup_fraction={warmup / steps}"), steps
    )
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    ramp = torch.optim.lr_scheduler.LinearLR(optimiser, start_factor=1 / warmup, total_iters=warmup - 1)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=steps)
    for step in range(steps):
        assert schedule(step) == pytest.approx(optimiser.param_groups[0]["lr"], abs=1e-9), step
        optimiser.step()
        ramp.step()
        cosine.step()


def test_a_run_too_short_for_its_warm_up_has_none() -> None:
    schedule = make_schedule(quick("train.schedule.name=constant", "train.warmup_fraction=0.1"), 4)
    assert [schedule(step) for step in range(4)] == [1.0] * 4
