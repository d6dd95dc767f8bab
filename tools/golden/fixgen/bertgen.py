"""bert: encoders for embeddings, reference transformers (f32, eager attention, CPU).

`bert` is laid out as sentence-transformers publishes (no prefix, modules.json, mean pooling, then a unit vector);
`bert_cls` as the first BERT checkpoints are (prefix "bert.", norms called gamma and beta, a masked-LM head that an
embedding model does not use, no pooler), with the first token as the embedding.

golden.json cases have no logits; `text` is one text, `texts` a pair (their ids share one list, told apart by
token_type_ids): `<case>.hidden` [T, hidden] is the last layer's output, `<case>.layer_l2` one row for
the output of the embeddings (after their norm) and one for each layer, `<case>.mean` and `<case>.cls` [1, hidden] the
two poolings, `<case>.embedding` what the folder's own modules give, `<case>.pooler` tanh(dense(first token)).
"""
import os
import shutil
import tempfile

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertModel

from . import prompts
from .common import low_rows, write_golden, write_json
from .textgen import fill, new_meta

NAMES = ["bert", "bert_cls"]
PAIRS = {"A": ("When does the noon boat leave?", "If the wind is above 30 knots, the noon boat waits until 14:30."),
         "B": ("Which clock agrees?", "The shop has 61 clocks and only 3 of them agree.")}
TOL = {"hidden": "1e-4 * max|ref|", "embedding": "1e-5 absolute", "token_ids": "exact"}


def config(spec, tok, cls):
    return {"architectures": ["BertForMaskedLM" if cls else "BertModel"], "model_type": "bert", "vocab_size": tok.size + 3, "hidden_size": spec.hidden, "num_hidden_layers": 2,
            "num_attention_heads": spec.heads, "intermediate_size": 128, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
            "max_position_embeddings": 512, "type_vocab_size": 2, "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": tok.id("[PAD]"),
            "position_embedding_type": "absolute", "use_cache": True, "classifier_dropout": None, "torch_dtype": "bfloat16", "transformers_version": "4.45.0"}


def write_modules(folder, spec, cls):
    """What sentence-transformers reads beside the model."""
    mods = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling")] + ([] if cls else [("2", "2_Normalize", "Normalize")])
    write_json(os.path.join(folder, "modules.json"), [{"idx": int(n), "name": n, "path": p, "type": f"sentence_transformers.models.{t}"} for n, p, t in mods])
    write_json(os.path.join(folder, "sentence_bert_config.json"), {"max_seq_length": 512, "do_lower_case": False})
    write_json(os.path.join(folder, "1_Pooling", "config.json"), {
        "word_embedding_dimension": spec.hidden, "pooling_mode_cls_token": cls, "pooling_mode_mean_tokens": not cls, "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False, "pooling_mode_weightedmean_tokens": False, "pooling_mode_lasttoken": False, "include_prompt": True})


def build_bert(name, spec, toks, root):
    cls = name == "bert_cls"
    tok, folder = toks["wordpiece"], os.path.join(root, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    cfg = config(spec, tok, cls)
    write_json(os.path.join(folder, "config.json"), cfg)
    tok.write(folder, 512, {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True, "unk_token": "[UNK]", "sep_token": "[SEP]", "cls_token": "[CLS]",
                            "mask_token": "[MASK]", "eos_token": None, "bos_token": None})
    with open(os.path.join(folder, "vocab.txt"), "w", encoding="utf-8") as f:
        f.writelines(t + "\n" for t, _ in sorted(tok.t.get_vocab().items(), key=lambda kv: kv[1]))
    write_modules(folder, spec, cls)
    seed = spec.seed * 1000 + (700 if cls else 600)
    model = (BertForMaskedLM if cls else BertModel)(BertConfig.from_pretrained(folder)).float().eval()
    fill(model, seed, {"dtype": "bf16"}, low_rows(tok, cfg["vocab_size"]))
    with tempfile.TemporaryDirectory() as tmp:
        model.save_pretrained(tmp)
        t = load_file(os.path.join(tmp, "model.safetensors"))
    if cls:
        t = {k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v for k, v in t.items()}
    save_file({k: v.to(torch.bfloat16) for k, v in t.items()}, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    ref, info = BertModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, add_pooling_layer=not cls)
    assert not info["missing_keys"], info
    ref.eval()
    hf = AutoTokenizer.from_pretrained(folder)
    tensors, meta = {}, new_meta(name, "bert", "safetensors-bf16", "weights stored in 16 bits, widened, arithmetic in float32")
    meta.update(eos_ignored_in_greedy=None, layer_l2_rows="output of the embeddings after their norm, output of each layer; one column a position", seed=seed, tokenizer="wordpiece", chat=[],
                pooling="cls" if cls else "mean", normalize=not cls, tolerances=TOL)
    for case, text in [*prompts.PROMPTS[spec.name].items(), ("pair", PAIRS[spec.name]), ("empty", "")]:
        pair = text if isinstance(text, tuple) else (text,)
        enc = tok.t.encode(*pair)
        assert hf(*pair)["input_ids"] == enc.ids and (hf(*pair).get("token_type_ids") or enc.type_ids) == enc.type_ids, case
        out = ref(input_ids=torch.tensor([enc.ids]), token_type_ids=torch.tensor([enc.type_ids]), output_hidden_states=True)
        h = out.last_hidden_state[0].numpy()
        # the same beside a longer, padded row: what a batch must give
        pad = len(enc.ids) + 7
        both = ref(input_ids=torch.tensor([enc.ids + [tok.id("[PAD]")] * 7, [enc.ids[0]] * pad]), token_type_ids=torch.tensor([enc.type_ids + [0] * 7, [0] * pad]),
                   attention_mask=torch.tensor([[1] * len(enc.ids) + [0] * 7, [1] * pad])).last_hidden_state[0, :len(enc.ids)].numpy()
        mean, first = h.mean(0, keepdims=True), h[:1]
        emb = first if cls else mean / np.linalg.norm(mean)
        tensors.update({f"{case}.hidden": h, f"{case}.mean": mean, f"{case}.cls": first, f"{case}.embedding": emb,
                        f"{case}.layer_l2": np.stack([x[0].norm(dim=-1).numpy() for x in out.hidden_states])})
        if not cls:
            tensors[f"{case}.pooler"] = out.pooler_output.numpy()
        row = {"name": case, **({"text": text} if len(pair) == 1 else {"texts": list(pair)}), "ids": enc.ids, "token_type_ids": enc.type_ids, "tokens": enc.tokens, "padded_vs_alone_max_abs": float(np.abs(both - h).max())}
        row["tensors"] = sorted(k.split(".", 1)[1] for k in tensors if k.startswith(case + "."))
        meta["cases"].append(row)
    write_golden(folder, tensors, meta)
    return folder
