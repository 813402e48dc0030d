"""Self-training: the model learns from pseudo-labels of a teacher, an earlier copy of the model.

Pseudo-labels are never written to a file. An auxiliary module holds the teacher and a few statistics per
class, and updates them at the start of each self-training round. In a training step the teacher sees the same
images as the model.
"""

from ducats.objectives.self_training.mrkld import MRKLD_SPEC as MRKLD_SPEC
from ducats.objectives.self_training.proda import PRODA_SPEC as PRODA_SPEC
from ducats.objectives.self_training.seg_uncertainty import SEG_UNCERTAINTY_SPEC as SEG_UNCERTAINTY_SPEC
from ducats.objectives.self_training.tpld import TPLD_SPEC as TPLD_SPEC
