"""commbench measures collective communication, fits T = alpha + D/B and judges the curves."""

__version__ = "0.1.0"
