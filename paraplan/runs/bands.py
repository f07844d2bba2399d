"""How far predictions were off on the measured runs, by device type: the error band that an estimate carries."""

BANDS = {
    "a100-40gb-sxm": 0.05,
    "a100-80gb-sxm": 0.13,
    "ascend-910b-64gb": 0.18,
    "b200-180gb-sxm": 0.12,
    "gb200-186gb-nvl72": 0.19,
    "h100-80gb-sxm": 0.08,
    "h100-96gb-hbm2e-500w": 0.12,
    "h200-141gb-sxm": 0.16,
    "unmeasured": 0.30,
}
"""Device to the relative error that 80 % of its measured runs stay within (``benchmarks/accuracy.py``)."""
