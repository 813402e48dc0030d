"""Self-training: the model learns from what an earlier copy of it, a teacher, said of unlabelled target.

No pseudo-label is ever written to a file. A companion holds the teacher and a few numbers per class, and
makes them anew when a round begins; in a step the teacher looks at the same images as the model.
"""

from ducats.objectives.selftraining.mrkld import mrkld
from ducats.objectives.selftraining.proda import Prototypes, proda
from ducats.objectives.selftraining.seg_uncertainty import TwoHeads, seg_uncertainty
from ducats.objectives.selftraining.teacher import Teacher
from ducats.objectives.selftraining.tpld import Densifier, tpld

__all__ = [
    "Densifier",
    "Prototypes",
    "Teacher",
    "TwoHeads",
    "mrkld",
    "proda",
    "seg_uncertainty",
    "tpld",
]
