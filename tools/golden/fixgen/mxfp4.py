"""MXFP4 as published gpt_oss checkpoints store experts: 32 values along the input axis share a power of two.

A weight [expert, in, out] is stored as blocks [expert, out, in / 32, 16] (two codes a byte, the low half first) and scales
[expert, out, in / 32] (exponent + 127).
"""
import numpy as np

VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def is_expert(name):
    return name.endswith(("experts.gate_up_proj", "experts.down_proj"))


def _codes(w):
    """(codes [expert, out, groups, 32], exponents [expert, out, groups]) of a weight [expert, in, out]."""
    x = np.swapaxes(np.asarray(w, np.float32), 1, 2)
    x = x.reshape(*x.shape[:2], -1, 32)
    e = np.floor(np.log2(np.abs(x).max(-1))).astype(np.int32) - 2
    d = np.abs(np.ldexp(x, -e[..., None])[..., None] - VALUES[:8] * np.sign(x)[..., None])
    c = d.argmin(-1).astype(np.uint8)
    return np.where((x < 0) & (c > 0), c + 8, c).astype(np.uint8), e


def nearest(w):
    """The weight with every value replaced by the nearest that MXFP4 can hold."""
    c, e = _codes(w)
    x = np.ldexp(VALUES[c], e[..., None])
    return np.ascontiguousarray(np.swapaxes(x.reshape(*x.shape[:2], -1), 1, 2))


def pack(w):
    c, e = _codes(w)
    assert np.array_equal(nearest(w), w), "not a weight that MXFP4 holds exactly"
    return np.ascontiguousarray(c[..., 0::2] | c[..., 1::2] << 4), np.ascontiguousarray(e + 127, dtype=np.uint8)
