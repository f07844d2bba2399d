"""How far predictions were off on the measured runs, by device type: the error band that an estimate carries."""

BANDS = {"unmeasured": 0.30}
"""Device to the relative error that 80 % of its measured runs stay within."""
