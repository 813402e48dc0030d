"""Self-training: the model learns from pseudo-labels of a teacher, an earlier copy of the model.

Pseudo-labels are never written to a file. An auxiliary module holds the teacher and a few statistics per
class, and updates them at the start of each self-training round. In a training step the teacher sees the same
images as the model.
"""

from ducats.objectives.self_training.mrkld import mrkld
from ducats.objectives.self_training.proda import PrototypeTeacher, proda
from ducats.objectives.self_training.seg_uncertainty import TwoHeads, seg_uncertainty
from ducats.objectives.self_training.teacher import Teacher
from ducats.objectives.self_training.tpld import DensifyingTeacher, tpld

__all__ = [
    "DensifyingTeacher",
    "PrototypeTeacher",
    "Teacher",
    "TwoHeads",
    "mrkld",
    "proda",
    "seg_uncertainty",
    "tpld",
]
