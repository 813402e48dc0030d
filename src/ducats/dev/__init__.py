"""Deep embedded validation: estimate a model's target risk without target labels."""

from ducats.dev.estimate import NORMALISE as NORMALISE
from ducats.dev.estimate import Control as Control
from ducats.dev.estimate import Dev as Dev
from ducats.dev.estimate import Normalise as Normalise
from ducats.dev.estimate import control as control
from ducats.dev.estimate import dev_risk as dev_risk
from ducats.dev.estimate import effective_share as effective_share
from ducats.dev.estimate import normalised as normalised
from ducats.dev.weights import Weights as Weights
from ducats.dev.weights import domain_weights as domain_weights
