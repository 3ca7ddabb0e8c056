"""Makes jit/codegen/math/coefficients.h: minimax polynomials by the Remez exchange (needs mpmath).

Run: python3 tests/reference/minimax.py > jit/codegen/math/coefficients.h
"""

import struct
import sys

from mpmath import mp, mpf

mp.dps = 45


def round_to(value, bits):
    """Nearest float of 24 or 53 bits."""
    if bits == 53:
        return mpf(float(value))
    return mpf(struct.unpack("f", struct.pack("f", float(value)))[0])


def evaluate(coefficients, x):
    total = mpf(0)
    for c in reversed(coefficients):
        total = total * x + c
    return total


def remez(points, values, weights, powers):
    """Coefficients of x^p, p in powers, with the smallest weighted error on the points."""
    n = len(powers)
    last = len(points) - 1
    at = [round(last * (1 - mp.cos(mp.pi * i / n)) / 2) for i in range(n + 1)]
    for _ in range(30):
        matrix = mp.matrix(n + 1, n + 1)
        right = mp.matrix(n + 1, 1)
        for row, i in enumerate(at):
            for column, p in enumerate(powers):
                matrix[row, column] = points[i] ** p
            matrix[row, n] = (-1) ** row / weights[i]
            right[row] = values[i]
        solved = mp.lu_solve(matrix, right)
        found = [solved[i] for i in range(n)]
        errors = [
            (sum(c * x**p for c, p in zip(found, powers, strict=True)) - v) * w
            for x, v, w in zip(points, values, weights, strict=True)
        ]
        picks = []
        for i, e in enumerate(errors):
            if picks and (e > 0) == (errors[picks[-1]] > 0):
                if abs(e) > abs(errors[picks[-1]]):
                    picks[-1] = i
            else:
                picks.append(i)
        while len(picks) > n + 1:
            picks.pop(0 if abs(errors[picks[0]]) < abs(errors[picks[-1]]) else -1)
        if len(picks) < n + 1 or picks == at:
            break
        at = picks
    return found, max(abs(e) for e in errors)


def fit(name, function, low, high, degree, weight, bits):
    count = 30 * (degree + 2)
    points = [low + (high - low) * (1 - mp.cos(mp.pi * (i + mpf(1) / 2) / count)) / 2 for i in range(count)]
    points = [mpf(p) for p in points]
    values = [function(p) for p in points]
    weights = [weight(p) for p in points]
    found, error = remez(points, values, weights, range(degree + 1))
    fixed = [round_to(c, bits) for c in found]
    if bits == 24 and low > 0:  # rounding one coefficient moves the better ones
        fixed, rest = [], values
        for power in range(degree + 1):
            part, _ = remez(points, rest, weights, range(power, degree + 1))
            fixed.append(round_to(part[0], bits))
            rest = [v - fixed[-1] * p**power for v, p in zip(rest, points, strict=True)]
    error = max(abs((evaluate(fixed, p) - v) * w) for p, v, w in zip(points, values, weights, strict=True))
    low_text, high_text = mp.nstr(low, 6), mp.nstr(high, 6)
    print(f"// [{low_text}, {high_text}], weighted error 2^{mp.nstr(mp.log(error, 2), 4) if error else '-inf'}")
    text = ", ".join(float(c).hex() for c in fixed)
    print(f"inline constexpr double {name}[] = {{{text}}};")
    sys.stdout.flush()


def least_squares(points, values, weights, powers):
    matrix = mp.matrix(len(points), len(powers))
    right = mp.matrix(len(points), 1)
    for row, (point, value, weight) in enumerate(zip(points, values, weights, strict=True)):
        for column, power in enumerate(powers):
            matrix[row, column] = weight * point**power
        right[row] = weight * value
    return list(mp.lu_solve(matrix, right))


def centre_of(function, middle, reach):
    """A float near `middle` where the function is (nearly) a float."""
    centre = round_to(middle, 24)
    goal = round_to(function(centre), 24)
    for _ in range(3):
        nearby = round_to(centre + (goal - function(centre)) / mp.diff(function, centre), 24)
        if abs(nearby - middle) < reach:
            centre = nearby
    ulp = mpf(2) ** (mp.floor(mp.log(centre, 2)) - 23)
    around = (centre + j * ulp for j in range(-200, 201))
    return min((abs(function(c) - round_to(function(c), 24)), c) for c in around)[1]


def table(name, function, step, columns, near, degree):
    """Centres, values there, coefficients of (f - value) / (x - centre); in the `near` first columns of f / x - 1."""
    found, worst = [], mpf(0)
    for i in range(columns):
        low, high = (i - mpf(1) / 2) * step if i else mpf(0), (i + mpf(1) / 2) * step
        low, high = low - (step / 1000 if i else 0), high + step / 1000
        count = 8 * (degree + 2)
        points = [low + (high - low) * (1 - mp.cos(mp.pi * (j + mpf(1) / 2) / count)) / 2 for j in range(count)]
        if i < near:
            centre, base = round_to(i * step, 24), mpf(0)
            rest = values = [function(p) / p - 1 for p in points]
            weights = [p / function(p) for p in points]
        else:
            centre = centre_of(function, i * step, step / 8)
            base = round_to(function(centre), 24)
            points = [p for p in points if abs(p - centre) > step / 10000]
            rest = values = [(function(p) - base) / (p - centre) for p in points]
            weights = [abs(p - centre) / function(p) for p in points]
        offsets = [p - centre for p in points]
        column = []
        for power in range(degree + 1):  # rounding one coefficient moves the better ones
            part = least_squares(offsets, rest, weights, range(power, degree + 1))
            column.append(round_to(part[0], 24))
            rest = [v - column[-1] * t**power for v, t in zip(rest, offsets, strict=True)]
        errors = zip(offsets, values, weights, strict=True)
        worst = max(worst, *(abs((evaluate(column, t) - v) * w) for t, v, w in errors))
        found.append([centre, base, *column])
    print(f"// {columns} intervals of {mp.nstr(step, 6)}, weighted error 2^{mp.nstr(mp.log(worst, 2), 4)}")
    print(f"inline constexpr double {name}[][{columns}] = {{")
    for row in zip(*found, strict=True):
        print("    {" + ", ".join(float(c).hex() for c in row) + "},")
    print("};")
    sys.stdout.flush()


def odd(function):
    """(f(x) - x) / x^3 as a function of z = x^2."""
    return lambda z: (function(mp.sqrt(z)) - mp.sqrt(z)) / mp.sqrt(z) ** 3


def odd_weight(function):
    return lambda z: mp.sqrt(z) ** 3 / function(mp.sqrt(z))


def erfcx_scaled(t):
    x = 4 * (1 + t) / (1 - t)
    return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)


def erfinv_ratio(w):
    """erfinv(x) / x with w = -log(1 - x^2)."""
    if w == 0:
        return mp.sqrt(mp.pi) / 2
    gap = mp.exp(-w)
    x = mp.sqrt(1 - gap)
    complement = gap / (1 + x)
    if w < 2:
        return mp.erfinv(x) / x
    y = mp.sqrt(w - mp.log(mp.sqrt(mp.pi * w)) / 1)
    for _ in range(60):  # Newton on log erfc
        c = mp.erfc(y)
        step = (mp.log(c) - mp.log(complement)) * c * mp.sqrt(mp.pi) / 2 * mp.exp(y * y)
        y += step
        if abs(step) < mpf(10) ** -40:
            break
    return y / x


def constants():
    ln2, log2e = mp.log(2), 1 / mp.log(2)
    p2 = mp.pi / 2

    def split(name, value, bits, first_bits, parts=2):
        out = []
        for i in range(parts):
            keep = first_bits if i == 0 else bits
            scale = mpf(2) ** (keep - 1 - mp.floor(mp.log(abs(value), 2)))
            half = mpf(0) if parts == 3 else mpf(1) / 2  # parts of one sign keep -0 in the reduction
            part = mp.floor(value * scale + half) / scale if i == 0 or parts == 3 else round_to(value, bits)
            out.append(part)
            value -= part
        print(f"inline constexpr double {name}[] = {{{', '.join(float(p).hex() for p in out)}}};")

    split("kLn2F32", ln2, 24, 24)
    split("kLn2F64", ln2, 53, 41)  # e * kLn2F64[0] is exact
    split("kLn2FullF64", ln2, 53, 53)
    split("kLog2eF64", log2e, 53, 53)
    split("kLog10eF64", 1 / mp.log(10), 53, 53)
    split("kLog10of2F64", mp.log(2) / mp.log(10), 53, 41)
    split("kHalfPiF32", p2, 24, 24, 3)
    split("kHalfPiF64", p2, 53, 53, 3)


def two_over_pi():
    """2^(E-150) * 2/pi mod 4 for the exponent fields of floats, and 2^(8j) * 2/pi mod 4 for doubles."""
    mp.prec = 1500
    two_pi = 2 / mp.pi

    def row(exponent, sizes):
        value = mp.fmod(two_pi * mpf(2) ** exponent, 4)
        parts = []
        for bits in sizes:
            scale = mpf(2) ** bits
            part = mpf(float(value)) if bits == 0 else mp.floor(value * scale) / scale
            parts.append(part)
            value -= part
        return parts

    rows32 = [row(e - 150, (27, 0)) for e in range(140, 255)]
    rows64 = [row(8 * j - 24, (0, 0, 0, 0)) for j in range(0, 126)]
    for name, rows in (("kTwoOverPiF32", rows32), ("kTwoOverPiF64", rows64)):
        print(f"inline constexpr double {name}[][{len(rows[0])}] = {{")
        for r in rows:
            print("    {" + ", ".join(float(p).hex() for p in r) + "},")
        print("};")


def main():
    print("#pragma once")
    print("// Written by tests/reference/minimax.py; do not edit. Lowest power first.")
    print("// clang-format off")
    print("namespace fastjit::codegen {")
    constants()
    h = mp.log(2) / 2 * mpf("1.0005")
    tail = lambda r: (mp.expm1(r) - r) / r**2 if r else mpf(1) / 2  # noqa: E731
    fit("kExpm1F32", tail, -h, h, 5, lambda r: abs(r), 24)
    exp2_tail = lambda f: (mpf(2) ** f - 1) / f if f else mp.log(2)  # noqa: E731
    fit("kExp2F32", exp2_tail, mpf(-1) / 2, mpf(1) / 2, 5, lambda f: abs(f), 24)
    fit("kExp2RoughF32", lambda f: mpf(2) ** f, mpf(0), mpf(1), 5, lambda f: mpf(2) ** -f, 24)
    fit("kExpF64", tail, -h, h, 10, lambda r: abs(r), 53)
    log_tail = lambda f: (mp.log1p(f) - f) / f**2 if f else mpf(-1) / 2  # noqa: E731
    fit("kLogF32", log_tail, mpf(-1) / 4, mpf(1) / 2, 8, lambda f: f**2 / abs(mp.log1p(f)), 24)
    third = (mp.sqrt(2) - 1) ** 2 / (mp.sqrt(2) + 1) ** 2 * mpf("1.001")
    atanh2 = lambda z: (2 * mp.atanh(mp.sqrt(z)) - 2 * mp.sqrt(z)) / mp.sqrt(z) ** 3  # noqa: E731
    fit("kLogF64", atanh2, mpf("1e-12"), third, 7, lambda z: z, 53)
    fifth = lambda z: (mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 1 - z / 3) / z**2  # noqa: E731
    mp.dps = 90
    fit("kPowLogF64", fifth, mpf("1e-12"), third, 7, lambda z: z**2, 53)
    mp.dps = 45
    q = (mp.pi / 4 * mpf("1.001")) ** 2
    tiny = mpf("1e-9")
    cos_tail = lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2  # noqa: E731
    fit("kSinF32", odd(mp.sin), tiny, q, 3, odd_weight(mp.sin), 24)
    fit("kCosF32", cos_tail, tiny, q, 2, lambda z: z**2, 24)
    fit("kSinF64", odd(mp.sin), tiny, q, 5, odd_weight(mp.sin), 53)
    fit("kCosF64", cos_tail, tiny, q, 5, lambda z: z**2, 53)
    fit("kSinhF64", odd(mp.sinh), tiny, mpf(1), 6, odd_weight(mp.sinh), 53)
    fit("kAtanF64", odd(mp.atan), tiny, mpf("0.1720"), 11, odd_weight(mp.atan), 53)
    fit("kAsinF64", odd(mp.asin), tiny, mpf("0.25"), 12, odd_weight(mp.asin), 53)
    erf_ratio = lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1  # noqa: E731
    erf_weight = lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z))  # noqa: E731
    fit("kErfF64", erf_ratio, tiny, mpf(1), 13, erf_weight, 53)
    fit("kErfcxF64", erfcx_scaled, mpf(-1), mpf("0.75"), 24, lambda t: 1 / erfcx_scaled(t), 53)
    central = lambda w: erfinv_ratio(w)  # noqa: E731
    fit("kErfinvCentralF64", lambda t: central(t + 3), mpf(-3), mpf("3.25"), 25, lambda t: 1 / central(t + 3), 53)
    near = lambda z: mp.erfinv(mp.sqrt(z)) / mp.sqrt(z)  # noqa: E731
    fit("kErfinvNearF64", near, tiny, mpf("0.26"), 14, lambda z: 1 / near(z), 53)
    tail_fit = lambda s: erfinv_ratio(s * s)  # noqa: E731
    middle = lambda t: tail_fit(t + mpf("3.25"))  # noqa: E731
    fit("kErfinvMiddleF64", middle, mpf("-0.751"), mpf("0.751"), 21, lambda t: 1 / middle(t), 53)
    fit("kErfinvFarF64", lambda t: tail_fit(t + 5), mpf("-1.01"), mpf("1.1"), 21, lambda t: 1 / tail_fit(t + 5), 53)
    table("kErf16F32", mp.erf, mpf("0.26"), 16, 2, 5)
    table("kErf8F32", mp.erf, mpf("0.53"), 8, 1, 6)
    table("kTanh16F32", mp.tanh, mpf("0.59"), 16, 1, 6)
    table("kTanh8F32", mp.tanh, mpf("1.22"), 8, 1, 8)
    two_over_pi()
    print("}  // namespace fastjit::codegen")


if __name__ == "__main__":
    main()
