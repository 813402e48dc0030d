"""Simulation of `ducats triage`: how often a rule is found, how much it accepts, how often it fails.

N images have uniform uncertainties in [0, 1], and an image is wrong with probability slope * uncertainty. The
error rate of all images below a threshold is therefore known: slope / 2 * threshold.

    python benchmarks/triage.py
"""

import numpy as np

from ducats.deploy import triage_rule

N_TRIALS, CONFIDENCE = 400, 0.9
CASES = (
    (300, 0.1, 0.4),
    (300, 0.05, 0.2),
    (1000, 0.05, 0.2),
    (1000, 0.05, 0.4),
    (3000, 0.05, 0.2),
    (150, 0.1, 0.3),
    (100, 0.05, 0.05),
    (300, 0.02, 0.03),
    (1000, 0.01, 0.03),
)


def simulate(images: int, risk: float, slope: float) -> tuple[float, float, float]:
    """Return the rates of rules found, images accepted (0 if no rule was found), and risk exceeded."""
    random, found, accepted, exceeded = np.random.default_rng(0), 0, 0.0, 0
    for _ in range(N_TRIALS):
        uncertainty = random.random(images)
        rule_found = triage_rule.find_acceptance_threshold(
            uncertainty, random.random(images) < slope * uncertainty, risk, CONFIDENCE
        )
        if rule_found is not None:
            found, accepted = found + 1, accepted + rule_found.max_uncertainty
            exceeded += slope / 2 * rule_found.max_uncertainty > risk
    return found / N_TRIALS, accepted / N_TRIALS, exceeded / N_TRIALS


def main() -> None:
    """Print a line for each case and each ratio of neighbouring candidate sizes."""
    default_ratio = triage_rule._SIZE_RATIO
    print(f"{N_TRIALS} trials each, confidence {CONFIDENCE}; default: ratio {default_ratio}")
    for images, risk, slope in CASES:
        print(f"{images} images, risk {risk}; at best {min(1, 2 * risk / slope):.2f} of them can be accepted")
        for ratio in (0.98, 0.95, 0.9, 0.85, 0.8, 0.7):
            triage_rule._SIZE_RATIO = ratio
            found, accepted, exceeded = simulate(images, risk, slope)
            print(f"  ratio {ratio}: found {found:.3f}, accepted {accepted:.3f}, exceeded {exceeded:.3f}")
    triage_rule._SIZE_RATIO = default_ratio


if __name__ == "__main__":
    main()
