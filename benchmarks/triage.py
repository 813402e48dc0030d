"""How often `ducats triage` finds a rule, how much it accepts, and how often its promise breaks: simulated.

Of N images with uncertainties evenly between 0 and 1, each is wrong with a chance of slope times uncertainty.
So the error of all below a threshold is known: slope / 2 times the threshold.

    python benchmarks/triage.py
"""

import numpy as np

from ducats.inference import rule

TIMES, CONFIDENCE = 400, 0.9
CASES = (
    (300, 0.1, 0.4),
    (300, 0.05, 0.2),
    (1000, 0.05, 0.2),
    (1000, 0.05, 0.4),
    (3000, 0.05, 0.2),
    (150, 0.1, 0.3),
)


def simulate(images: int, risk: float, slope: float) -> tuple[float, float, float]:
    """Shares of the times: found, accepted (0 if none was found), promise broken."""
    random, found, accepted, broken = np.random.default_rng(0), 0, 0.0, 0
    for _ in range(TIMES):
        uncertainty = random.random(images)
        one = rule.find(uncertainty, random.random(images) < slope * uncertainty, risk, CONFIDENCE)
        if one is not None:
            found, accepted = found + 1, accepted + one.last
            broken += slope / 2 * one.last > risk
    return found / TIMES, accepted / TIMES, broken / TIMES


def main() -> None:
    """Print a line for each case and each number of wrong images that the first step may hold."""
    shipped = rule.SPARE
    print(f"{TIMES} times each, confidence {CONFIDENCE}; shipped: {shipped} wrong at first")
    for images, risk, slope in CASES:
        print(f"{images} images, risk {risk}, of which {min(1, 2 * risk / slope):.2f} could be accepted")
        for spare in (0, 1, 2, 4, 6, 8):
            rule.SPARE = spare
            found, accepted, broken = simulate(images, risk, slope)
            print(
                f"  {spare} wrong at first: found {found:.3f}, accepted {accepted:.3f}, broken {broken:.3f}"
            )
    rule.SPARE = shipped


if __name__ == "__main__":
    main()
