#!/usr/bin/env python3
"""One Python peer on one model: python_peers.py torch|mlx-lm|openvino MODEL PROMPT GEN RUNS THREADS

Runs PROMPT random tokens and GEN generated ones RUNS times after a warm-up, with a fresh prompt each
time (a repeated one would hit a prefix cache), and prints one JSON object: {"pp": [tokens/s],
"tg": [tokens/s]}. With RUNS 0 the warm-up is what counts, for peers that take minutes.
"""
import json
import sys
import time

import numpy as np


def prompt(rng, n):
    return rng.integers(100, 40000, n).astype(np.int64)


def run_torch(path, n_prompt, n_gen, threads):
    import torch
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16,
                                                 attn_implementation="sdpa").eval()

    def one(rng):
        ids = torch.from_numpy(prompt(rng, n_prompt))[None]
        with torch.inference_mode():
            t0 = time.perf_counter()
            out = model(ids, use_cache=True, logits_to_keep=1)
            t1 = time.perf_counter()
            for _ in range(n_gen):
                token = out.logits[:, -1].argmax(-1, keepdim=True)
                out = model(token, past_key_values=out.past_key_values, use_cache=True)
            t2 = time.perf_counter()
        return n_prompt / (t1 - t0), n_gen / (t2 - t1)
    return one


def run_mlx(path, n_prompt, n_gen, _threads):
    import mlx.core as mx
    from mlx_lm import load
    from mlx_lm.models.cache import make_prompt_cache
    mx.set_default_device(mx.cpu)
    model, _ = load(path)

    def one(rng):
        cache = make_prompt_cache(model)
        t0 = time.perf_counter()
        logits = model(mx.array(prompt(rng, n_prompt))[None], cache=cache)[:, -1]
        token = mx.argmax(logits, -1)
        mx.eval(token)
        t1 = time.perf_counter()
        for _ in range(n_gen):
            token = mx.argmax(model(token[None], cache=cache)[:, -1], -1)
            mx.eval(token)
        t2 = time.perf_counter()
        return n_prompt / (t1 - t0), n_gen / (t2 - t1)
    return one


def run_openvino(path, n_prompt, n_gen, threads):
    import openvino
    import openvino_genai
    pipe = openvino_genai.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=threads)
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = n_gen + 1
    config.ignore_eos = True
    config.do_sample = config.apply_chat_template = False

    def one(rng):
        ids = prompt(rng, n_prompt)[None]
        found = pipe.generate(openvino_genai.TokenizedInputs(
            openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids))), config)
        m = found.perf_metrics
        return n_prompt / (m.get_ttft().mean / 1e3), 1e3 / m.get_tpot().mean
    return one


def main():
    kind, path = sys.argv[1:3]
    n_prompt, n_gen, runs, threads = map(int, sys.argv[3:7])
    rng = np.random.default_rng(int(time.time()))
    one = {"torch": run_torch, "mlx-lm": run_mlx, "openvino": run_openvino}[kind](
        path, n_prompt, n_gen, threads)
    rates = [one(rng) for _ in range(max(runs + 1, 1))][min(runs, 1):]
    print(json.dumps({"pp": [r[0] for r in rates], "tg": [r[1] for r in rates]}))


if __name__ == "__main__":
    main()
