"""Probes: small networks trained on the model's outputs, which provide columns to queries.

A probe works with any objective and does not affect the model. An objective that trains the model against
such a network, as domain-adversarial training does, has it as its auxiliary module instead.
"""

from collections.abc import Mapping

from ducats.objectives.auxiliary import AuxiliaryModule
from ducats.objectives.probes.committee import Committee
from ducats.objectives.probes.critic import Critic
from ducats.objectives.probes.discriminator import Discriminator, target_images

PROBES: Mapping[str, type[AuxiliaryModule]] = {  # by the column they provide
    "domain": Discriminator,
    "critic": Critic,
    "committee": Committee,
}

__all__ = ["PROBES", "Committee", "Critic", "Discriminator", "target_images"]
