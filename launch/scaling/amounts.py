"""Large numbers as short texts."""
import re


def short(number):
    """1234567 -> 1.23M."""
    for factor, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= factor:
            return f"{number / factor:.3g}{suffix}"
    return f"{number:.3g}"


def size(count):
    """1234567 -> 1.23 MB."""
    return re.sub(r"([kMGT]?)$", r" \1B", short(count), count=1)
