"""Deep embedded validation: estimate a model's target risk without target labels."""

from ducats.evaluation.model_selection.deep_embedded_validation import (
    WEIGHT_NORMALISATIONS as WEIGHT_NORMALISATIONS,
)
from ducats.evaluation.model_selection.deep_embedded_validation import (
    ControlVariateEstimate as ControlVariateEstimate,
)
from ducats.evaluation.model_selection.deep_embedded_validation import DevEstimate as DevEstimate
from ducats.evaluation.model_selection.deep_embedded_validation import (
    WeightNormalisation as WeightNormalisation,
)
from ducats.evaluation.model_selection.deep_embedded_validation import (
    control_variate_estimate as control_variate_estimate,
)
from ducats.evaluation.model_selection.deep_embedded_validation import dev_risk as dev_risk
from ducats.evaluation.model_selection.deep_embedded_validation import (
    effective_sample_fraction as effective_sample_fraction,
)
from ducats.evaluation.model_selection.deep_embedded_validation import normalise_weights as normalise_weights
from ducats.evaluation.model_selection.importance_weights import DomainWeights as DomainWeights
from ducats.evaluation.model_selection.importance_weights import domain_weights as domain_weights
