"""Registry of figures by name."""

from collections.abc import Callable, Mapping

from ducats.report.figures.base import FigureOptions, PreparedFigure
from ducats.report.figures.beta_lambda import prepare_beta_lambda
from ducats.report.figures.budget import prepare_budget
from ducats.report.figures.calibration import prepare_calibration
from ducats.report.figures.entropies import prepare_entropies
from ducats.report.figures.features import prepare_features
from ducats.report.figures.gallery import prepare_gallery
from ducats.report.figures.histogram import prepare_histogram
from ducats.report.figures.kappa import prepare_kappa
from ducats.report.figures.pixels import prepare_pixels
from ducats.report.figures.runs import RunSequence
from ducats.report.figures.simplex import prepare_simplex
from ducats.report.figures.tsne import prepare_tsne
from ducats.report.figures.u_dis import prepare_u_dis
from ducats.report.figures.uncertainties import prepare_uncertainties

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
