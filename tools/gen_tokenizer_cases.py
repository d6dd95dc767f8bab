#!/usr/bin/env python3
"""Makes the small tokenisers of tests/data/tokenizers/kinds with what the references make of texts.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 tiktoken==0.14.0
    python tools/gen_tokenizer_cases.py OUT            # writes OUT/NAME/... and OUT/NAME/golden.json
    python tools/gen_tokenizer_cases.py --check PROBE OUT [ROUNDS]

Every vocabulary is trained here, from the sentences below. golden.json holds, per text: ids, ids_add
(with the tokens around a text) and what they decode to with and without special tokens; and lists of
ids with their texts and streamed pieces. --check asks tok_probe for many made-up texts instead and
prints where it differs.
"""
import base64
import io
import json
import os
import random
import subprocess
import sys
import tempfile

import sentencepiece as spm
import tiktoken
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)
from tokenizers.decoders import DecodeStream

SENTENCES = [
    "The lamp on the desk is green, and the shade is made of paper.",
    "A small boat lies on the shore; nobody has used it since the storm.",
    "She counted 12, 37 and 2048 pebbles, then lost her count again!",
    "Don't worry: it's only rain, they've said, and we'll be home by nine.",
    "Der Müller mahlt das Korn, während die Bäckerin schläft.",
    "L'été dernier, nous avons mangé des pêches près de la rivière.",
    "Мельник мелет зерно, а река течёт мимо старой мельницы.",
    "猫は机の上で眠っている。雨が降っている。",
    "小船停在岸边,没有人知道它是谁的。",
    "작은 배가 물가에 있다. 아무도 타지 않는다.",
    "ที่ริมน้ำมีเรือลำเล็ก",
    "for (i = 0; i < n; i++) { total += values[i]; }",
    "Paper lamps, green lamps, lamps of glass: the lamplighter lights them all.",
    "Unbelievable! The unbelievers believed the believable.",
    "walking walked walks walker, talking talked talks talker",
]
TEXTS = SENTENCES + [
    "", " ", "  ", "a", " a", "a ", "  a  b  ", "\n", "a\nb", "a\r\n\tb\n\n", "\u00a0x\u3000y\u2003z",
    "lamp" * 20, "aaaaaaaaaaaaaaaaaaaaaaaaaaaa", "x" * 130, "ZZZ qqq", "Q", "é", "e\u0301", "E\u0301a",
    "\ufb01ne \uff21\uff22 \u2460\u0308 \u00bd", "\u2581\u2581a", "a\u2581b", "\U0001f642\U0001f642",
    "family \U0001f468\u200d\U0001f469\u200d\U0001f467 here", "a\u200bb\u200cc\ufeffd\u00add",
    "\x00a\x01b\x7fc", "nul\x00", "<s>", "</s>", "a<s>b </s> c", "<unk>", "[CLS] a [SEP]", "[UNK]",
    "<tool> a<tool>b", "<0x41>", "don't 's 've n't . , ?", "「引用」、句点。", "한글 자모 \u1112\u1161\u11ab",
    "\u0e01\u0e33 \u0e01\u0e49\u0e33", "नमस्ते क्षेत्र", "مرحبا بالعالم", "ǅ İ ß ﬀ ẞ", "\u0130\u0049", "1,234.5",
    "naïve café CAFÉ", "\U00020000\U0002f800", "tab\tend", "new\u2028line\u2029x", "\u1680x", "##ing lamp##s",
    "the the the", "wholly</w> x", "a.b,c!d?e", "#$%^&*", "\ufffd", "\u0085x", "word\u0308word",
]


def own_rules():
    """A small character map: what a rule file of sentencepiece may say, one thing of each kind."""
    pairs = {"\ufb01": "fi", "\uff21": "A", "\uff22": "B", "\u2460": "1", "\u00bd": "1\u20442",
             "e\u0301": "é", "E\u0301": "É", "\u00a0": " ", "\u3000": " ", "\t": " ", "\n": " ",
             "\r": " ", "\u200b": "", "\ufeff": "", "\u1112\u1161\u11ab": "한", "ẞ": "SS"}
    lines = []
    for k, v in pairs.items():
        left = " ".join("%X" % ord(c) for c in k)
        lines.append(left + "\t" + " ".join("%X" % ord(c) for c in v))
    return "\n".join(lines) + "\n"


def write_rules():
    with open("rules.tsv", "w") as f:  # its name ends up in the model
        f.write(own_rules())


# ---- making ----

def train(tokenizer, trainer):
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    return tokenizer


def write_json(tokenizer, folder):
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump(json.loads(tokenizer.to_str()), f, ensure_ascii=False, separators=(",", ":"))


def alphabet():
    return sorted(set("".join(SENTENCES)) - {" "})[:110]


def make_unigram(folder):
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(),
                                         normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    t.decoder = decoders.Metaspace(prepend_scheme="first")
    train(t, trainers.UnigramTrainer(vocab_size=420, special_tokens=["<s>", "</s>", "<unk>"],
                                     unk_token="<unk>", show_progress=False))
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    t.add_tokens(["<tool>"])
    write_json(t, folder)


def charsmap():
    """The map that sentencepiece compiles of own_rules."""
    write_rules()
    out = io.BytesIO()
    spm.SentencePieceTrainer.train(sentence_iterator=iter(SENTENCES), model_writer=out,
                                   vocab_size=200, normalization_rule_tsv="rules.tsv",
                                   hard_vocab_limit=False, minloglevel=2)
    return find_charsmap(out.getvalue())


def fields(data):
    i = 0

    def varint():
        nonlocal i
        v = s = 0
        while True:
            b = data[i]
            i += 1
            v |= (b & 127) << s
            s += 7
            if b < 128:
                return v
    while i < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        elif key & 7 == 2:
            n = varint()
            yield key >> 3, data[i:i + n]
            i += n
        else:
            n = 8 if key & 7 == 1 else 4
            yield key >> 3, data[i:i + n]
            i += n


def find_charsmap(model):
    spec = next(v for k, v in fields(model) if k == 3)
    return next(v for k, v in fields(spec) if k == 2)


def make_unigram_bytes(folder):
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap()),
                                         normalizers.Strip(left=False, right=True)])
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    train(t, trainers.UnigramTrainer(vocab_size=300, special_tokens=["<unk>"], unk_token="<unk>",
                                     show_progress=False))
    root = json.loads(t.to_str())
    root["model"]["vocab"] += [["<0x%02X>" % b, 0.0] for b in range(256)]
    root["model"]["byte_fallback"] = True
    t = Tokenizer.from_str(json.dumps(root))
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(),
                                   decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    write_json(t, folder)


def make_wordpiece(folder):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=True)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    train(t, trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        initial_alphabet=alphabet(), show_progress=False))
    t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    write_json(t, folder)


def make_wordpiece_cased(folder):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=12))
    t.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=True,
                                              handle_chinese_chars=False)
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(),
                                               pre_tokenizers.Punctuation("merged_with_previous"),
                                               pre_tokenizers.Digits(individual_digits=True)])
    t.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    train(t, trainers.WordPieceTrainer(vocab_size=350, special_tokens=["[UNK]"],
                                       show_progress=False))
    write_json(t, folder)


def make_wordlevel(folder):
    t = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    t.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(),
                                         normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    train(t, trainers.WordLevelTrainer(vocab_size=200, special_tokens=["[UNK]", "[PAD]"],
                                       show_progress=False))
    write_json(t, folder)


def make_scripts(folder):
    t = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.CharDelimiterSplit("|"),
                                               pre_tokenizers.UnicodeScripts()])
    words = ["[UNK]"] + sorted({w for s in TEXTS for w, _ in
                                t.pre_tokenizer.pre_tokenize_str(s)})[:400]
    t.model = models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]")
    t.decoder = decoders.CTC(pad_token="[UNK]", word_delimiter_token="|", cleanup=True)
    write_json(t, folder)


def make_bpe_suffix(folder):
    t = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>", fuse_unk=False))
    t.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.BPEDecoder()
    train(t, trainers.BpeTrainer(vocab_size=360, special_tokens=["<unk>"],
                                 end_of_word_suffix="</w>", show_progress=False))
    write_json(t, folder)


def make_bpe_prefix(folder):
    t = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##", fuse_unk=True))
    t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    t.decoder = decoders.WordPiece(prefix="##")
    train(t, trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>"],
                                 continuing_subword_prefix="##", show_progress=False))
    write_json(t, folder)


def train_spm(folder, **options):
    out = io.BytesIO()
    spm.SentencePieceTrainer.train(sentence_iterator=iter(SENTENCES * 3), model_writer=out,
                                   minloglevel=2, num_threads=1, hard_vocab_limit=False, **options)
    with open(os.path.join(folder, "tokenizer.model"), "wb") as f:
        f.write(out.getvalue())


def make_spm_unigram(folder):
    write_rules()
    train_spm(folder, model_type="unigram", vocab_size=380, normalization_rule_tsv="rules.tsv",
              user_defined_symbols=["<tool>", "\uff22\uff22", "lamp lamp"],
              control_symbols=["<ctl>"], pad_id=3)


def make_spm_unigram_bytes(folder):
    train_spm(folder, model_type="unigram", vocab_size=560, byte_fallback=True,
              normalization_rule_name="identity", remove_extra_whitespaces=False, bos_id=-1,
              eos_id=0, unk_id=1)


def make_spm_bpe(folder):
    train_spm(folder, model_type="bpe", vocab_size=640, byte_fallback=True,
              normalization_rule_name="identity", remove_extra_whitespaces=False,
              user_defined_symbols=["<tool>", "  ", "\n\n"], split_digits=True)


def make_spm_suffix(folder):
    train_spm(folder, model_type="unigram", vocab_size=300, treat_whitespace_as_suffix=True,
              normalization_rule_name="identity")


def make_spm_no_prefix(folder):
    train_spm(folder, model_type="bpe", vocab_size=400, add_dummy_prefix=False,
              normalization_rule_name="identity", bos_id=1, eos_id=2, unk_id=0)


PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
           r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def train_ranks(size):
    """Byte pairs by count, as many as make `size` tokens."""
    import regex
    words = [[bytes([b]) for b in w.encode()] for s in SENTENCES for w in regex.findall(PATTERN, s)]
    ranks = {bytes([b]): b for b in range(256)}
    while len(ranks) < size:
        counts = {}
        for w in words:
            for a, b in zip(w, w[1:]):
                counts[a, b] = counts.get((a, b), 0) + 1
        pair = max(counts, key=lambda p: (counts[p], p))
        ranks[pair[0] + pair[1]] = len(ranks)
        for w in words:
            i = 0
            while i + 1 < len(w):
                if (w[i], w[i + 1]) == pair:
                    w[i:i + 2] = [pair[0] + pair[1]]
                i += 1
    return ranks


LLAMA3 = (["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>",
           "<|reserved_special_token_1|>", "<|finetune_right_pad_id|>", "<|step_id|>",
           "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>",
           "<|image|>"] + ["<|reserved_special_token_%d|>" % i for i in range(2, 246)])


def make_tiktoken(folder):
    with open(os.path.join(folder, "tokenizer.model"), "wb") as f:
        for token, rank in train_ranks(420).items():
            f.write(base64.b64encode(token) + b" %d\n" % rank)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"model_type": "llama"}, f)


def make_tekken(folder):
    vocab = [{"rank": r, "token_bytes": base64.b64encode(t).decode(), "token_str": None}
             for t, r in train_ranks(420).items()]
    root = {"config": {"pattern": TEKKEN, "num_vocab_tokens": 420, "default_vocab_size": 420,
                       "default_num_special_tokens": 24, "version": "v3"}, "vocab": vocab}
    with open(os.path.join(folder, "tekken.json"), "w") as f:
        json.dump(root, f)


# ---- asking the references ----

class HF:
    def __init__(self, folder):
        self.t = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))

    def encode(self, text, add=False):
        return self.t.encode(text, add_special_tokens=add).ids

    def decode(self, ids, skip):
        return self.t.decode(ids, skip_special_tokens=skip)

    def pieces(self, ids):
        stream, out = DecodeStream(skip_special_tokens=False), []
        for i in ids:
            out.append(stream.step(self.t, i) or "")
        return out

    def n_ids(self):
        return self.t.get_vocab_size()


class SPM:
    def __init__(self, folder):
        self.t = spm.SentencePieceProcessor(os.path.join(folder, "tokenizer.model"))

    def encode(self, text, add=False):
        ids = self.t.encode(text)
        if add and self.t.bos_id() >= 0:
            return [self.t.bos_id()] + ids
        return ids + [self.t.eos_id()] if add and self.t.eos_id() >= 0 else ids

    def decode(self, ids, skip):
        return self.t.decode(ids)

    def n_ids(self):
        return self.t.get_piece_size()


class Ranks:
    def __init__(self, folder):
        if os.path.exists(os.path.join(folder, "tekken.json")):
            with open(os.path.join(folder, "tekken.json")) as f:
                root = json.load(f)
            self.first, pattern, special, self.bos = 24, TEKKEN, {}, 1
            ranks = {base64.b64decode(v["token_bytes"]): v["rank"] for v in root["vocab"]
                     if v["rank"] < 420 - 24}
        else:
            with open(os.path.join(folder, "tokenizer.model"), "rb") as f:
                ranks = {base64.b64decode(a): int(b) for a, b in (x.split() for x in f)}
            self.first, pattern = 0, PATTERN
            special = {t: len(ranks) + i for i, t in enumerate(LLAMA3)}
            self.bos = len(ranks)
        self.special = set(special.values())
        self.t = tiktoken.Encoding("own", pat_str=pattern, mergeable_ranks=ranks,
                                   special_tokens=special)

    def encode(self, text, add=False):
        ids = [i + self.first for i in self.t.encode(text, allowed_special="all",
                                                     disallowed_special=())]
        return [self.bos] + ids if add else ids

    def decode(self, ids, skip):
        return self.t.decode([i - self.first for i in ids if i >= self.first and
                              not (skip and i in self.special)])

    def n_ids(self):
        return self.t.n_vocab + self.first if self.first == 0 else 420


KINDS = {
    "unigram": (make_unigram, HF), "unigram_bytes": (make_unigram_bytes, HF),
    "wordpiece": (make_wordpiece, HF), "wordpiece_cased": (make_wordpiece_cased, HF),
    "wordlevel": (make_wordlevel, HF), "scripts": (make_scripts, HF),
    "bpe_suffix": (make_bpe_suffix, HF), "bpe_prefix": (make_bpe_prefix, HF),
    "spm_unigram": (make_spm_unigram, SPM), "spm_unigram_bytes": (make_spm_unigram_bytes, SPM),
    "spm_bpe": (make_spm_bpe, SPM), "spm_suffix": (make_spm_suffix, SPM),
    "spm_no_prefix": (make_spm_no_prefix, SPM),
    "tiktoken": (make_tiktoken, Ranks), "tekken": (make_tekken, Ranks),
}


def is_plain(name):
    """Does the reference take special tokens for plain text?"""
    return name.startswith("spm") or name == "tekken"


def takes(name, text):
    """Texts that the reference gives up on, or that mean special tokens only to us."""
    if is_plain(name):
        return not any(x in text for x in ("<s>", "</s>", "<unk>", "<ctl>", "\x00"))
    return True


def random_text(rng):
    out = []
    for _ in range(rng.randrange(1, 12)):
        k = rng.randrange(6)
        if k == 0:
            out.append(rng.choice(TEXTS))
        elif k == 1:
            s = rng.choice(SENTENCES)
            a = rng.randrange(len(s))
            out.append(s[a:a + rng.randrange(1, 20)])
        elif k == 2:
            out.append(rng.choice([" ", "  ", "\n", "\t", "\u00a0", "\u3000", "\u2581"]))
        elif k == 3:
            out.append("".join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(0xA0, 0x250),
                                               rng.randrange(0x300, 0x370),
                                               rng.randrange(0x400, 0x460),
                                               rng.randrange(0xE00, 0xE5B),
                                               rng.randrange(0x4E00, 0x4F00)]))
                               for _ in range(rng.randrange(1, 9))))
        elif k == 4:
            out.append(rng.choice("abcdelmp") * rng.randrange(1, 30))
        else:
            out.append(rng.choice(["<tool>", "e\u0301", "\u2460\u0308", "lamp lamp", "\U0001f642"]))
    return "".join(out)


def golden(name, folder, ref):
    rng = random.Random(name)
    cases = []
    for text in TEXTS:
        if not takes(name, text):
            continue
        ids = ref.encode(text)
        cases.append({"text": text, "ids": ids, "ids_add": ref.encode(text, True),
                      "decoded": ref.decode(ids, False), "decoded_skip": ref.decode(ids, True)})
    lists = []
    for n in (1, 2, 3, 5, 8, 13, 21, 34):
        ids = [rng.randrange(ref.n_ids()) for _ in range(n)]
        lists.append({"ids": ids, "decoded": ref.decode(ids, False),
                      "decoded_skip": ref.decode(ids, True)})
    def lines(items):
        return ",\n".join(json.dumps(x, ensure_ascii=False, separators=(",", ":")) for x in items)

    silent = isinstance(ref, SPM) or name == "tekken"
    with open(os.path.join(folder, "golden.json"), "w") as f:
        f.write('{"n_ids": %d, "plain": %s, "silent": %s,\n"cases": [\n%s],\n"lists": [\n%s]}\n'
                % (ref.n_ids(), json.dumps(is_plain(name)), json.dumps(silent), lines(cases),
                   lines(lists)))


def check(name, folder, ref, probe, rounds):
    rng = random.Random(rounds)
    texts = TEXTS + [random_text(rng) for _ in range(rounds)]
    texts = [t for t in texts if takes(name, t)]
    asked, want = [], []
    parse = not is_plain(name)
    for t in texts:
        ids = ref.encode(t)
        asked += [{"text": t, "parse": parse}, {"text": t, "parse": parse, "add": True},
                  {"ids": ids, "skip": isinstance(ref, SPM)}, {"ids": ids, "skip": True}]
        want += [ids, ref.encode(t, True), ref.decode(ids, False), ref.decode(ids, True)]
    for _ in range(rounds):
        ids = [rng.randrange(ref.n_ids()) for _ in range(rng.randrange(1, 20))]
        asked += [{"ids": ids, "skip": not isinstance(ref, HF) and name != "tiktoken"},
                  {"ids": ids, "skip": True}]
        want += [ref.decode(ids, False), ref.decode(ids, True)]
    run = subprocess.run([probe, folder], input="".join(json.dumps(q) + "\n" for q in asked),
                         capture_output=True, text=True)
    if run.returncode:
        print(name, run.stderr.strip())
        return
    got = [json.loads(x) for x in run.stdout.split("\n") if x]
    bad = [(q, w, g) for q, w, g in zip(asked, want, got) if w != g]
    print(f"{name:18} {len(asked) - len(bad)}/{len(asked)}")
    for q, w, g in bad[:3]:
        print(f"   {ascii(q)[:260]}\n     want {ascii(w)[:240]}\n     got  {ascii(g)[:240]}")


def main():
    args = sys.argv[1:]
    probe = rounds = None
    if args[0] == "--check":
        probe, rounds, args = os.path.abspath(args[1]), int(args[3]) if len(args) > 3 else 300, args[2:]
    out = os.path.abspath(args[0])
    os.chdir(tempfile.mkdtemp())
    for name, (make, reference) in KINDS.items():
        folder = os.path.join(out, name)
        os.makedirs(folder, exist_ok=True)
        if probe:
            check(name, folder, reference(folder), probe, rounds)
            continue
        make(folder)
        golden(name, folder, reference(folder))


if __name__ == "__main__":
    main()
