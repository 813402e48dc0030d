"""Registry of figures by name."""

from collections.abc import Callable, Mapping

from ducats.figures.beta_lambda import beta_lambda
from ducats.figures.budget import budget
from ducats.figures.calibration import calibration
from ducats.figures.drawing import Asked, Drawing
from ducats.figures.entropies import entropies
from ducats.figures.features import features
from ducats.figures.gallery import gallery
from ducats.figures.histogram import histogram
from ducats.figures.kappa import kappa
from ducats.figures.pixels import pixels
from ducats.figures.runs import Runs
from ducats.figures.simplex import simplex
from ducats.figures.tsne import tsne
from ducats.figures.u_dis import u_dis
from ducats.figures.uncertainties import uncertainties

FIGURES: Mapping[str, Callable[[Runs, Asked], Drawing]] = {
    "entropies": entropies,
    "simplex": simplex,
    "u_dis": u_dis,
    "calibration": calibration,
    "kappa": kappa,
    "beta_lambda": beta_lambda,
    "budget": budget,
    "histogram": histogram,
    "gallery": gallery,
    "pixels": pixels,
    "tsne": tsne,
    "uncertainties": uncertainties,
    "features": features,
}
