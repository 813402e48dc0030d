"""Probes: small networks trained on the model's outputs, which provide columns to queries.

A probe works with any objective and does not affect the model. An objective that trains the model against
such a network, as domain-adversarial training does, has it as its auxiliary module instead.
"""

from collections.abc import Callable, Mapping

from ducats.objectives.companion import Beside, Companion
from ducats.objectives.witnesses.committee import Committee
from ducats.objectives.witnesses.critic import Critic
from ducats.objectives.witnesses.discriminator import Discriminator, target_images

WITNESSES: Mapping[str, Callable[[Beside], Companion]] = {
    "domain": Discriminator,
    "critic": Critic,
    "committee": Committee,
}

__all__ = ["WITNESSES", "Committee", "Critic", "Discriminator", "target_images"]
