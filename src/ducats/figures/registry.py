"""Registry of figures by name."""

from collections.abc import Callable, Mapping

from ducats.figures.base import FigureOptions, PreparedFigure
from ducats.figures.beta_lambda import prepare_beta_lambda
from ducats.figures.budget import prepare_budget
from ducats.figures.calibration import prepare_calibration
from ducats.figures.entropies import prepare_entropies
from ducats.figures.features import prepare_features
from ducats.figures.gallery import prepare_gallery
from ducats.figures.histogram import prepare_histogram
from ducats.figures.kappa import prepare_kappa
from ducats.figures.pixels import prepare_pixels
from ducats.figures.runs import RunSequence
from ducats.figures.simplex import prepare_simplex
from ducats.figures.tsne import prepare_tsne
from ducats.figures.u_dis import prepare_u_dis
from ducats.figures.uncertainties import prepare_uncertainties

FIGURE_FUNCTIONS: Mapping[str, Callable[[RunSequence, FigureOptions], PreparedFigure]] = {
    "entropies": prepare_entropies,
    "simplex": prepare_simplex,
    "u_dis": prepare_u_dis,
    "calibration": prepare_calibration,
    "kappa": prepare_kappa,
    "beta_lambda": prepare_beta_lambda,
    "budget": prepare_budget,
    "histogram": prepare_histogram,
    "gallery": prepare_gallery,
    "pixels": prepare_pixels,
    "tsne": prepare_tsne,
    "uncertainties": prepare_uncertainties,
    "features": prepare_features,
}
