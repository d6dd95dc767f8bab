#!/usr/bin/env python3
"""Consistency of a finished set: python verify.py OUT..."""
import glob
import hashlib
import json
import os
import sys

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer


def check_model(d):
    bad = []
    j = json.load(open(os.path.join(d, "golden", "golden.json"), encoding="utf-8"))
    g = load_file(os.path.join(d, "golden", "golden.safetensors"))
    if j["family"] == "bert":
        return check_encoder(d, j, g)
    for k, v in g.items():
        if np.issubdtype(v.dtype, np.floating) and not np.isfinite(v).all():
            bad.append(f"{k} is not finite")
    tok = os.path.join(d, "tokenizer.json")
    tok = Tokenizer.from_file(tok) if os.path.exists(tok) else None
    vocab = None
    for c in j["cases"]:
        ids = c.get("ids") or c["expanded_ids"]
        lg, pos = g[c["logits"]], c["logits_positions"]
        if len(lg) != (len(ids) if pos == "all" else len(pos)):
            bad.append(f"{c['name']}: rows {len(lg)}")
        if int(lg[-1].argmax()) != c["greedy_ids"][0]:
            bad.append(f"{c['name']}: last row does not choose the first greedy id")
        if len(c["greedy_ids"]) != 24 or c["min_margin"] <= 0.05:
            bad.append(f"{c['name']}: margin {c['min_margin']}")
        if max(ids) >= lg.shape[1] + (1 if j["family"] == "mllama" else 0):
            bad.append(f"{c['name']}: id out of vocabulary")
        if tok and "text" in c and tok.encode(c["text"]).ids != c["ids"]:
            bad.append(f"{c['name']}: token ids")
        if tok and "rendered" in c and c["unexpanded_ids"] not in (tok.encode(c["rendered"]).ids, tok.encode(c["rendered"], add_special_tokens=False).ids):
            bad.append(f"{c['name']}: rendered ids")
        for t in c.get("tensors", []):
            if f"{c['name']}.{t}" not in g:
                bad.append(f"{c['name']}.{t} missing")
    src = load_file(os.path.join(d, j["image_tensors_in"])) if "image_tensors_in" in j else g
    for n, r in j.get("images", {}).items():
        if not os.path.exists(os.path.join(d, r["file"])):
            bad.append(f"{r['file']} missing")
        bad += [f"img.{n}.{t} missing" for t in r["tensors"] if f"img.{n}.{t}" not in src]
    return bad, len(j["cases"])


def check_encoder(d, j, g):
    """A folder without logits (bert)."""
    bad = [f"{k} is not finite" for k, v in g.items() if not np.isfinite(v).all()]
    tok = Tokenizer.from_file(os.path.join(d, "tokenizer.json"))
    for c in j["cases"]:
        enc = tok.encode(*c.get("texts", [c.get("text")]))
        if (enc.ids, enc.type_ids, enc.tokens) != (c["ids"], c["token_type_ids"], c["tokens"]):
            bad.append(f"{c['name']}: token ids")
        h, emb = g[f"{c['name']}.hidden"], g[f"{c['name']}.embedding"]
        want = h[:1] if j["pooling"] == "cls" else h.mean(0, keepdims=True)
        if len(h) != len(c["ids"]) or np.abs(emb - (want / np.linalg.norm(want) if j["normalize"] else want)).max() > 1e-5:
            bad.append(f"{c['name']}: pooling")
        if np.abs(np.linalg.norm(h, axis=-1) - g[f"{c['name']}.layer_l2"][-1]).max() > 1e-4 or c["padded_vs_alone_max_abs"] > 1e-4:
            bad.append(f"{c['name']}: hidden")
        bad += [f"{c['name']}.{t} missing" for t in c["tensors"] if f"{c['name']}.{t}" not in g]
    return bad, len(j["cases"])


def main(roots):
    failed = passed = 0
    for root in roots:
        man = json.load(open(os.path.join(root, "manifest.json"), encoding="utf-8"))
        for d in sorted(glob.glob(os.path.join(root, "*", "golden"))):
            d = os.path.dirname(d)
            bad, n = check_model(d)
            for f, r in man["models"][os.path.basename(d)]["files"].items():
                if hashlib.sha256(open(os.path.join(d, f), "rb").read()).hexdigest() != r["sha256"]:
                    bad.append(f"{f} differs from the manifest")
            failed, passed = failed + bool(bad), passed + (not bad)
            if bad:
                print(d, bad)
        size = sum(os.path.getsize(os.path.join(r, f)) for r, _, fs in os.walk(root) for f in fs)
        print(f"{root}: {len(man['models'])} folders, {size / 1e6:.1f} MB")
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
