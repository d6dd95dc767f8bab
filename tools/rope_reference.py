#!/usr/bin/env python3
"""RoPE frequencies from the published formulas, in double precision: the expected numbers of
tests/graph/test_rope.c. Needs only the standard library.

    python3 tools/rope_reference.py > tests/data/graph/rope.json
"""
import json
import math


def plain(theta, dims):
    return [theta ** (-2 * i / dims) for i in range(dims // 2)]


def mscale(factor, m):
    return 1.0 if factor <= 1 else 0.1 * m * math.log(factor) + 1


def yarn(r):
    dims, theta, factor, context = r["dims"], r["theta"], r["factor"], r["original_max"]

    def turns(n):
        return dims * math.log(context / (n * 2 * math.pi)) / (2 * math.log(theta))

    low, high = turns(r.get("beta_fast", 32)), turns(r.get("beta_slow", 1))
    if r.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    high += 0.001 if low == high else 0
    out = []
    for i, f in enumerate(plain(theta, dims)):
        ramp = min(max((i - low) / (high - low), 0), 1)
        out.append(f / factor * ramp + f * (1 - ramp))
    if r.get("attention_factor"):
        return out, r["attention_factor"]
    if r.get("mscale") and r.get("mscale_all_dim"):
        return out, mscale(factor, r["mscale"]) / mscale(factor, r["mscale_all_dim"])
    return out, mscale(factor, 1)


def llama3(r):
    low, high, factor, context = (r[k] for k in ("low_freq_factor", "high_freq_factor", "factor",
                                                 "original_max"))
    out = []
    for f in plain(r["theta"], r["dims"]):
        wave = 2 * math.pi / f
        if wave > context / low:
            f /= factor
        elif wave >= context / high:
            s = (context / wave - low) / (high - low)
            f = (1 - s) * f / factor + s * f
        out.append(f)
    return out


def longrope(r, length):
    factors = r["long_factor"] if length > r["original_max"] else r["short_factor"]
    out = [f / x for f, x in zip(plain(r["theta"], r["dims"]), factors)]
    if r.get("attention_factor"):
        return out, r["attention_factor"]
    if r["factor"] <= 1:
        return out, 1.0
    return out, math.sqrt(1 + math.log(r["factor"]) / math.log(r["original_max"]))


def frequencies(r, length):
    kind, dims, scale = r["scaling"], r["dims"], 1.0
    if kind == "none":
        out = plain(r["theta"], dims)
    elif kind == "linear":
        out = [f / r["factor"] for f in plain(r["theta"], dims)]
    elif kind == "dynamic":
        n = max(length, r["max_position"])
        grow = r["factor"] * n / r["max_position"] - (r["factor"] - 1)
        out = plain(r["theta"] * grow ** (dims / (dims - 2)), dims)
    elif kind == "yarn":
        out, scale = yarn(r)
    elif kind == "llama3":
        out = llama3(r)
    else:
        out, scale = longrope(r, length)
    if "freq_factor" in r:
        out = [f / x for f, x in zip(out, r["freq_factor"])]
    return out, scale


def cases():
    yield "plain", dict(scaling="none", dims=16, theta=1e4), 1
    yield "plain_odd_theta", dict(scaling="none", dims=96, theta=1234567.0), 5
    yield "linear", dict(scaling="linear", dims=32, theta=1e4, factor=2.5), 1
    dynamic = dict(scaling="dynamic", dims=64, theta=1e4, factor=2.0, max_position=2048)
    yield "dynamic_short", dynamic, 100
    yield "dynamic_at_context", dynamic, 2048
    yield "dynamic_long", dynamic, 5000
    qwen = dict(scaling="yarn", dims=128, theta=1e6, factor=4.0, original_max=32768)
    yield "yarn", qwen, 1
    yield "yarn_no_truncate", dict(qwen, truncate=False), 1
    yield "yarn_attention_factor", dict(qwen, attention_factor=0.75), 1
    deepseek = dict(qwen, dims=64, theta=1e4, factor=40.0, original_max=4096, mscale=0.8,
                    mscale_all_dim=1.0)
    yield "yarn_mscale", deepseek, 1
    yield "yarn_betas", dict(qwen, beta_fast=64.0, beta_slow=2.0), 1
    yield "yarn_small_factor", dict(qwen, factor=0.5), 1
    yield "yarn_narrow", dict(qwen, dims=8, beta_fast=1e9, beta_slow=1e9), 1
    llama = dict(scaling="llama3", dims=128, theta=5e5, factor=8.0, low_freq_factor=1.0,
                 high_freq_factor=4.0, original_max=8192)
    yield "llama3", llama, 1
    yield "llama3_small", dict(llama, dims=16, factor=32.0, original_max=64), 1
    long = dict(scaling="longrope", dims=16, theta=1e4, factor=4.0, original_max=64,
                short_factor=[1.0 + 0.125 * i for i in range(8)],
                long_factor=[1.5 + 0.5 * i for i in range(8)])
    yield "longrope_short", long, 64
    yield "longrope_long", long, 65
    yield "longrope_attention_factor", dict(long, attention_factor=1.25), 65
    yield "longrope_no_growth", dict(long, factor=1.0), 65
    yield "freq_factor", dict(scaling="none", dims=8, theta=5e5,
                              freq_factor=[1.0, 2.0, 4.5, 8.0]), 1


def main():
    lines = []
    for name, rope, length in cases():
        inv_freq, factor = frequencies(rope, length)
        lines.append(json.dumps(dict(name=name, rope=rope, length=length, factor=factor,
                                     inv_freq=inv_freq)))
    print("[\n" + ",\n".join(lines) + "\n]")


if __name__ == "__main__":
    main()
