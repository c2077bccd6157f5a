"""Plain quantisers for the GGUF formats that the gguf package only reads: each part's scale from its largest number."""
import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


def halves(a):
    return a.astype(np.float16).reshape(-1, 1).view(np.uint8)


def ratio(a, b):
    return np.divide(a, b, out=np.zeros(np.broadcast_shapes(a.shape, b.shape), np.float32), where=b != 0)


def rounded(scale):
    """As a reader sees it."""
    return scale.astype(np.float16).astype(np.float32)


def pack_scales(scales, mins):
    """Eight scales and eight minima of six bits in twelve bytes."""
    out = np.zeros(scales.shape[:-1] + (12,), np.uint8)
    out[..., 0:4] = scales[..., :4] | (scales[..., 4:] >> 4) << 6
    out[..., 4:8] = mins[..., :4] | (mins[..., 4:] >> 4) << 6
    out[..., 8:12] = (scales[..., 4:] & 15) | (mins[..., 4:] & 15) << 4
    return out


def with_minima(x, parts, top, most):
    """Codes of 0 to `top`, scales and minima of 0 to `most`, and the block's two scales."""
    sub = x.reshape(-1, parts, 256 // parts)
    low = np.maximum(-sub.min(-1), 0)
    scale = (sub.max(-1) + low) / top
    d = rounded(scale.max(-1, keepdims=True) / most)
    dmin = rounded(low.max(-1, keepdims=True) / most)
    sc = np.round(ratio(scale, d)).clip(0, most)
    m = np.round(ratio(low, dmin)).clip(0, most)
    q = np.round(ratio(sub + (dmin * m)[..., None], (d * sc)[..., None])).clip(0, top).astype(np.uint8)
    return q, sc.astype(np.uint8), m.astype(np.uint8), d, dmin


def low_pairs(q):
    """Two bits of 256 codes: halves of 128, in each four runs share 32 bytes."""
    runs = (q.reshape(-1, 2, 4, 32) & 3) << (2 * np.arange(4, dtype=np.uint8))[None, None, :, None]
    return np.bitwise_or.reduce(runs, 2).reshape(-1, 64)


def bit_of_runs(bits):
    """A bit of 256 codes: a byte's bit r is run r's."""
    return np.bitwise_or.reduce(bits.reshape(-1, 8, 32) << np.arange(8, dtype=np.uint8)[None, :, None], 1)


def q2_k(x):
    q, sc, m, d, dmin = with_minima(x, 16, 3, 15)
    return np.concatenate([sc | m << 4, low_pairs(q), halves(d), halves(dmin)], -1)


def q3_k(x):
    sub = x.reshape(-1, 16, 16)
    scale = np.abs(sub).max(-1) / 4
    d = rounded(scale.max(-1, keepdims=True) / 31)
    sc = np.round(ratio(scale, d)).clip(1, 31).astype(np.uint8) + 32
    q = (np.round(ratio(sub, (d * (sc - 32.0))[..., None])).clip(-4, 3) + 4).astype(np.uint8)
    low = sc[:, :8] & 15 | (sc[:, 8:] & 15) << 4
    high = np.bitwise_or.reduce((sc.reshape(-1, 4, 4) >> 4) << (2 * np.arange(4, dtype=np.uint8))[None, :, None], 1)
    return np.concatenate([bit_of_runs(q >> 2), low_pairs(q), low, high, halves(d)], -1)


def q4_or_q5_k(x, kind):
    q, sc, m, d, dmin = with_minima(x, 8, 15 if kind == T.Q4_K else 31, 63)
    pairs = q.reshape(-1, 4, 2, 32) & 15
    parts = [halves(d), halves(dmin), pack_scales(sc, m)] + ([bit_of_runs(q >> 4)] if kind == T.Q5_K else [])
    return np.concatenate(parts + [(pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)], -1)


def q6_k(x):
    sub = x.reshape(-1, 16, 16)
    scale = np.abs(sub).max(-1) / 31
    d = rounded(scale.max(-1, keepdims=True) / 127)
    sc = np.round(ratio(scale, d)).clip(1, 127)
    q = (np.round(ratio(sub, (d * sc)[..., None])).clip(-32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = np.concatenate([q[:, :, 0:2] & 15 | (q[:, :, 2:4] & 15) << 4], -1).reshape(-1, 128)
    high = (q[:, :, 0] >> 4 | q[:, :, 1] >> 4 << 2 | q[:, :, 2] >> 4 << 4 | q[:, :, 3] >> 4 << 6).reshape(-1, 64)
    return np.concatenate([low, high, sc.astype(np.int8).view(np.uint8), halves(d)], -1)


def iq4_codes(sub, scale):
    """Codes of the nearest numbers, two in a byte: those of the first half of 32 in the low bits."""
    near = ratio(sub, scale)
    codes = np.abs(near[..., None] - IQ4).argmin(-1).astype(np.uint8)
    return codes[..., :16] | codes[..., 16:] << 4


def extreme(sub):
    """Of each part the number of largest magnitude."""
    return np.take_along_axis(sub, np.abs(sub).argmax(-1)[..., None], -1)


def iq4_nl(x):
    sub = x.reshape(-1, 32)
    d = rounded(extreme(sub) / -127)
    return np.concatenate([halves(d), iq4_codes(sub, d)], -1)


def iq4_xs(x):
    sub = x.reshape(-1, 8, 32)
    scale = extreme(sub)[..., 0] / -127
    d = rounded(np.abs(scale).max(-1, keepdims=True) / 31)
    sc = np.round(ratio(scale, d)).clip(-32, 31)
    codes = iq4_codes(sub, (d * sc)[..., None]).reshape(-1, 128)
    sc = (sc + 32).astype(np.uint16)
    high = np.bitwise_or.reduce((sc >> 4) << (2 * np.arange(8, dtype=np.uint16)), -1).reshape(-1, 1)
    low = (sc[:, 0::2] & 15 | (sc[:, 1::2] & 15) << 4).astype(np.uint8)
    return np.concatenate([halves(d), high.astype(np.uint16).view(np.uint8), low, codes], -1)


OWN = {T.Q2_K: q2_k, T.Q3_K: q3_k, T.Q4_K: lambda x: q4_or_q5_k(x, T.Q4_K), T.Q5_K: lambda x: q4_or_q5_k(x, T.Q5_K),
       T.Q6_K: q6_k, T.IQ4_NL: iq4_nl, T.IQ4_XS: iq4_xs}


def quantize(values, kind):
    """Rows of a matrix as stored blocks."""
    if kind not in OWN:
        return gguf.quantize(values, kind)
    return OWN[kind](values.astype(np.float32)).reshape(values.shape[0], -1)
