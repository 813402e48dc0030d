"""Witnesses: small networks that learn from what the model says, so that a query can ask them.

Each stands beside any objective, and leaves the model alone. An objective that trains the model against one,
as domain-adversarial training does, has it as its companion instead.
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
