"""Laws of networks that read tokens in order or at once: one function for each law.

A law takes `model`, a `Model`, and a batch of inputs: token ids of shape (batch, tokens), features
of shape (batch, tokens, width), or images. It returns what was found and what was expected. Laws
use torch, each other and `inputs` alone, since scripts that show a broken law contain the source.
"""

from . import caches, generation, gradients, packing, padding, precision, settings, sources, tokens
from .law import LAWS, Measured, NetworkLaw, NotApplicable, Pair, network_law

LAWS.sort(key=lambda law: law.name != "determinism")  # what others rest on comes first
__all__ = [
    "LAWS",
    "Measured",
    "NetworkLaw",
    "NotApplicable",
    "Pair",
    "caches",
    "generation",
    "gradients",
    "network_law",
    "packing",
    "padding",
    "precision",
    "settings",
    "sources",
    "tokens",
]
