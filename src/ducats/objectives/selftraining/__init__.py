"""Self-training: the model learns from pseudo-labels of a teacher, an earlier copy of the model.

Pseudo-labels are never written to a file. An auxiliary module holds the teacher and a few statistics per
class, and updates them at the start of each self-training round. In a training step the teacher sees the same
images as the model.
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
