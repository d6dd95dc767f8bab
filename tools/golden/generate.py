#!/usr/bin/env python3
"""Make one fixture set.  Run with the transformers environment; mlx steps call --mlx-python.

  python generate.py --set A --out OUT --mlx-python /path/to/mlx-venv/bin/python
"""
import argparse
import glob
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

STEPS = ["tokenizers", "text", "vlm", "formats", "gguf", "mlx", "check", "manifest"]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--set", choices="AB", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--mlx-python", default=os.environ.get("MLX_PYTHON"))
    ap.add_argument("--tokenizers", help="folder with tokenizers to use instead of training them (set A: tests/data/tokenizers)")
    ap.add_argument("--steps", default=",".join(STEPS))
    ap.add_argument("--only", default="", help="comma-separated model names")
    a = ap.parse_args()
    only = set(filter(None, a.only.split(",")))

    import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    from fixgen import bertgen, common, formats, ggufgen, manifest, pictures, textgen, toks, vlmgen

    spec = common.SETS[a.set]
    root = os.path.abspath(a.out)
    work = root + ".work"
    os.makedirs(root, exist_ok=True)
    T = toks.build_all(spec, a.tokenizers)
    paths = pictures.draw_all(spec, os.path.join(root, "images"))
    steps = a.steps.split(",")
    failed = []

    def each(names, f):
        for n in names:
            if only and n not in only:
                continue
            t0 = time.time()
            try:
                f(n)
                d = os.path.join(root, n)
                print(f"{n}: {common.folder_size(d) / 1024:.0f} KiB, {time.time() - t0:.1f} s" if os.path.isdir(d) else f"{n}: done", flush=True)
            except Exception as e:
                import traceback
                traceback.print_exc()
                failed.append(n)
                print(f"{n}: FAILED {type(e).__name__}: {str(e)[:200]}", flush=True)

    def mlx(module, *args):
        subprocess.run([a.mlx_python, "-m", module, *args], cwd=HERE, check=True, env={**os.environ, "PYTHONPATH": HERE, "PYTHONWARNINGS": "ignore"})

    if "tokenizers" in steps:
        toks.write_tokenizer_goldens(T, os.path.join(root, "tokenizers"))
    if "text" in steps:
        each(textgen.text_families(spec), lambda n: textgen.build_text(n, spec, T, root))
        each(bertgen.NAMES, lambda n: bertgen.build_bert(n, spec, T, root))
    if "vlm" in steps:
        each(vlmgen.FAMILIES, lambda n: vlmgen.build_vlm(n, spec, T, root, paths))
    if "formats" in steps:
        each(["llama", "qwen2_vl"], lambda n: formats.build_formats(n, spec, T, root, paths))
    if "gguf" in steps:
        each(ggufgen.VARIANTS, lambda n: ggufgen.build_gguf(n, spec, T, root))
        each(["gguf_blocks"], lambda n: ggufgen.build_blocks(spec, root))
    if "mlx" in steps:
        wide = replace(spec, hidden=spec.qhidden, heads=spec.qheads, kv_heads=spec.qkv_heads, inter=spec.qinter, layers=2)
        os.makedirs(work, exist_ok=True)
        if not os.path.exists(os.path.join(work, "images")):
            shutil.copytree(os.path.join(root, "images"), os.path.join(work, "images"))
        t = vlmgen.build_vlm("qwen2_vl", wide, T, work, {k: os.path.join(work, "images", os.path.basename(v)) for k, v in paths.items()})
        each(["bailing"], lambda n: mlx("fixgen.mlxgen", "bailing", a.set, root))
        each(["llama-mlx"], lambda n: mlx("fixgen.mlxgen", "llama", a.set, root))
        each(["qwen2_vl-mlx"], lambda n: mlx("fixgen.mlxgen", "qwen", a.set, root, t))
    if "check" in steps:
        mlx("fixgen.mlxcheck", root, *sorted(only))
        mlx("fixgen.mlxpixels", root, *sorted(only))
        for f in sorted(glob.glob(os.path.join(root, "*_mlx_*"))):
            print(os.path.basename(f), formats.check_quantised(f), flush=True)
    if "manifest" in steps:
        m = manifest.write_manifest(root, spec)
        print(f"{len(m['models'])} models, {m['total_bytes'] / 2**20:.1f} MiB")
    shutil.rmtree(work, ignore_errors=True)
    if failed:
        print("failed:", failed)
        return 1


if __name__ == "__main__":
    sys.exit(main())
