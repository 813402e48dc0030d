"""Data sets, decoding and views. Empty, so that `streaming` can be imported without torch."""
