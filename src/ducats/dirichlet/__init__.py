"""Maths of the Dirichlet distribution: uncertainties, likelihood, divergence, evidence functions."""

from ducats.dirichlet.formulas import EVIDENCE_FUNCTIONS as EVIDENCE_FUNCTIONS
from ducats.dirichlet.formulas import Uncertainties as Uncertainties
from ducats.dirichlet.formulas import can_compile as can_compile
from ducats.dirichlet.formulas import compile_formulas as compile_formulas
from ducats.dirichlet.formulas import data_uncertainty as data_uncertainty
from ducats.dirichlet.formulas import distribution_uncertainty as distribution_uncertainty
from ducats.dirichlet.formulas import entropy as entropy
from ducats.dirichlet.formulas import expected_probability as expected_probability
from ducats.dirichlet.formulas import kl_to_uniform as kl_to_uniform
from ducats.dirichlet.formulas import log_distribution_uncertainty as log_distribution_uncertainty
from ducats.dirichlet.formulas import merge_components as merge_components
from ducats.dirichlet.formulas import misleading_evidence as misleading_evidence
from ducats.dirichlet.formulas import negative_log_likelihood as negative_log_likelihood
from ducats.dirichlet.formulas import uncertainties as uncertainties
