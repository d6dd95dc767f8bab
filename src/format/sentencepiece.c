/* tokenizer.model of sentencepiece. The protobuf wire format is read in place: a cursor over a
 * message, fields as (number, varint or bytes), no allocation but the description's.
 * In: the file. Out: pieces with types and scores, the normaliser as one step, decoders.
 * Facts of the format: ModelProto has pieces (1), trainer_spec (2), normalizer_spec (3) and
 * denormalizer_spec (5); fields that are not named here bear on training only and are passed over.
 * Invariant: no length is believed before it was compared with what is left. */
#include "format/sentencepiece.h"

#include <math.h>
#include <string.h>

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5, KIND_UNIGRAM = 1, KIND_BPE = 2 };

struct message {
    const unsigned char *p, *end;
    struct mxc_err *err;
};

struct field {
    uint64_t number, value; /* value of a varint, or of fixed bits */
    unsigned wire;
    struct message bytes;
};

struct model {
    struct mxc_tokdesc *desc;
    struct mxc_err *err;
    struct mxc_str charsmap;
    uint64_t kind;
    bool add_prefix, strip_extra, escape, suffix;
    int64_t ids[4]; /* unk, bos, eos, pad */
    size_t n_pieces;
};

static enum mxc_code damaged(struct mxc_err *err, const char *what) {
    return mxc_err_set(err, MXC_E_FORMAT, "sentencepiece model: %s", what);
}

static enum mxc_code read_varint(struct message *m, uint64_t *out) {
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        if (m->p == m->end)
            return damaged(m->err, "the file ends within a number");
        unsigned char c = *m->p++;
        if (shift == 63 && c > 1)
            break;
        v |= (uint64_t)(c & 0x7F) << shift;
        if (!(c & 0x80)) {
            *out = v;
            return MXC_OK;
        }
    }
    return damaged(m->err, "a number of more than 64 bits");
}

static enum mxc_code read_fixed(struct message *m, unsigned n, uint64_t *out) {
    if ((size_t)(m->end - m->p) < n)
        return damaged(m->err, "the file ends within a number");
    *out = 0;
    for (unsigned i = 0; i < n; i++)
        *out |= (uint64_t)m->p[i] << 8 * i;
    m->p += n;
    return MXC_OK;
}

/* Next field of a message that has not ended. */
static enum mxc_code read_field(struct message *m, struct field *f) {
    uint64_t key = 0, length = 0;
    enum mxc_code code = read_varint(m, &key);
    if (code)
        return code;
    f->number = key >> 3;
    f->wire = (unsigned)(key & 7);
    f->value = 0;
    f->bytes = (struct message){NULL, NULL, m->err};
    switch (f->wire) {
    case VARINT:
        return read_varint(m, &f->value);
    case FIXED64:
        return read_fixed(m, 8, &f->value);
    case FIXED32:
        return read_fixed(m, 4, &f->value);
    case BYTES:
        if ((code = read_varint(m, &length)))
            return code;
        if (length > (size_t)(m->end - m->p))
            return damaged(m->err, "a field is longer than the file");
        f->bytes.p = m->p;
        f->bytes.end = m->p += length;
        return MXC_OK;
    default:
        return damaged(m->err, "an unknown kind of field");
    }
}

static struct mxc_str text_of(const struct field *f) {
    if (f->bytes.p == f->bytes.end)
        return (struct mxc_str){"", 0};
    return (struct mxc_str){(const char *)f->bytes.p, (size_t)(f->bytes.end - f->bytes.p)};
}

static enum mxc_code read_piece(struct model *s, struct message m) {
    struct mxc_str text = {"", 0};
    uint32_t bits = 0;
    float score;
    uint64_t type = MXC_TOKEN_NORMAL;
    struct field f;
    enum mxc_code code;
    while (m.p < m.end) {
        if ((code = read_field(&m, &f)))
            return code;
        if (f.number == 1 && f.wire == BYTES)
            text = text_of(&f);
        else if (f.number == 2 && f.wire == FIXED32)
            bits = (uint32_t)f.value;
        else if (f.number == 3 && f.wire == VARINT)
            type = f.value;
    }
    memcpy(&score, &bits, sizeof score);
    if (!text.length || !mxc_utf8_valid(text.ptr, text.length))
        return mxc_err_set(s->err, MXC_E_FORMAT, "sentencepiece model: piece %zu is %s",
                           s->n_pieces, text.length ? "not UTF-8" : "empty");
    if (type < MXC_TOKEN_NORMAL || type > MXC_TOKEN_BYTE)
        return mxc_err_set(s->err, MXC_E_FORMAT, "sentencepiece model: piece %zu has type %llu",
                           s->n_pieces, (unsigned long long)type);
    if (!isfinite(score))
        return mxc_err_set(s->err, MXC_E_FORMAT,
                           "sentencepiece model: the score of piece %zu is not finite",
                           s->n_pieces);
    code =
        mxc_tokdesc_add_token(s->desc, s->n_pieces, text, score, (enum mxc_tok_type)type, s->err);
    if (!code)
        code = mxc_tokdesc_set_score(s->desc, (uint32_t)s->n_pieces, (double)score, s->err);
    s->n_pieces++;
    return code;
}

static enum mxc_code read_trainer(struct model *s, struct message m) {
    struct field f;
    while (m.p < m.end) {
        enum mxc_code code = read_field(&m, &f);
        if (code)
            return code;
        if (f.wire != VARINT)
            continue;
        if (f.number == 3)
            s->kind = f.value;
        else if (f.number == 24)
            s->suffix = f.value != 0;
        else if (f.number == 35)
            s->desc->byte_fallback = f.value != 0;
        else if (f.number >= 40 && f.number <= 43) /* int32, sign-extended */
            s->ids[f.number - 40] = (int32_t)(uint32_t)f.value;
    }
    return MXC_OK;
}

static enum mxc_code read_normalizer(struct model *s, struct message m) {
    struct field f;
    while (m.p < m.end) {
        enum mxc_code code = read_field(&m, &f);
        if (code)
            return code;
        if (f.number == 2 && f.wire == BYTES)
            s->charsmap = text_of(&f);
        else if (f.number == 3 && f.wire == VARINT)
            s->add_prefix = f.value != 0;
        else if (f.number == 4 && f.wire == VARINT)
            s->strip_extra = f.value != 0;
        else if (f.number == 5 && f.wire == VARINT)
            s->escape = f.value != 0;
    }
    return MXC_OK;
}

static enum mxc_code check_denormalizer(struct model *s, struct message m) {
    struct field f;
    while (m.p < m.end) {
        enum mxc_code code = read_field(&m, &f);
        if (code)
            return code;
        if (f.number == 2 && f.wire == BYTES && f.bytes.p != f.bytes.end)
            return mxc_err_set(s->err, MXC_E_UNSUPPORTED,
                               "sentencepiece model: denormalizer_spec is not supported");
    }
    return MXC_OK;
}

static enum mxc_code read_model(struct model *s, struct message m) {
    struct field f;
    while (m.p < m.end) {
        enum mxc_code code = read_field(&m, &f);
        if (code)
            return code;
        if (f.wire != BYTES)
            continue;
        switch (f.number) {
        case 1:
            code = read_piece(s, f.bytes);
            break;
        case 2:
            code = read_trainer(s, f.bytes);
            break;
        case 3:
            code = read_normalizer(s, f.bytes);
            break;
        case 5:
            code = check_denormalizer(s, f.bytes);
            break;
        default:
            break;
        }
        if (code)
            return code;
    }
    if (!s->n_pieces)
        return damaged(s->err, "there are no pieces");
    return mxc_tokdesc_index(s->desc, s->err);
}

/* Pieces that are matched as a whole: special ones in the raw text, user-defined ones in the
 * normalised text, as that library does. */
static enum mxc_code add_matched(struct mxc_tokdesc *d, struct mxc_err *err) {
    enum mxc_code code = MXC_OK;
    for (uint32_t id = 0; id < d->n_ids && !code; id++) {
        unsigned type = d->tokens[id].type;
        if (type != MXC_TOKEN_CONTROL && type != MXC_TOKEN_UNKNOWN && type != MXC_TOKEN_USER)
            continue;
        bool user = type == MXC_TOKEN_USER;
        struct mxc_tok_added a = {.id = id, .special = !user, .normalized = user};
        code = mxc_tokdesc_add_added(d, &a, err);
    }
    return code;
}

static enum mxc_code add_decoders(const struct model *s) {
    static const char meta[] = "\xE2\x96\x81";
    struct mxc_tokdesc *d = s->desc;
    const struct mxc_tok_step steps[] = {
        {.kind = MXC_TOK_REPLACE, .pattern = MXC_STR(meta), .content = MXC_STR(" ")},
        {.kind = MXC_TOK_BYTE_FALLBACK},
        {.kind = MXC_TOK_FUSE},
        {.kind = MXC_TOK_STRIP,
         .content = MXC_STR(" "),
         .n_start = 1,
         .strip_extra = s->strip_extra}};
    size_t n = s->add_prefix || s->strip_extra ? 4 : 3;
    enum mxc_code code = MXC_OK;
    for (size_t i = 0; i < n && !code; i++)
        code = mxc_tokdesc_add_step(d, &d->decoders, &steps[i], s->err);
    return code;
}

static enum mxc_code check_ids(struct model *s) {
    struct mxc_tokdesc *d = s->desc;
    uint32_t *out[] = {&d->unk, &d->bos, &d->eos, &d->pad};
    static const enum mxc_tok_type types[] = {MXC_TOKEN_UNKNOWN, MXC_TOKEN_CONTROL,
                                              MXC_TOKEN_CONTROL, MXC_TOKEN_CONTROL};
    for (int i = 0; i < 4; i++) {
        int64_t id = s->ids[i];
        *out[i] = id >= 0 && (uint64_t)id < d->n_ids && d->tokens[id].type == types[i]
                      ? (uint32_t)id
                      : MXC_TOK_NO_ID;
    }
    for (uint32_t id = 0; id < d->n_ids && d->unk == MXC_TOK_NO_ID; id++)
        if (d->tokens[id].type == MXC_TOKEN_UNKNOWN)
            d->unk = id;
    if (d->unk == MXC_TOK_NO_ID)
        return damaged(s->err, "no piece is the unknown one");
    return MXC_OK;
}

static enum mxc_code finish(struct model *s) {
    struct mxc_tokdesc *d = s->desc;
    struct mxc_tok_step step = {.kind = MXC_TOK_SPM_TEXT,
                                .content = s->charsmap,
                                .add_prefix_space = s->add_prefix,
                                .strip_extra = s->strip_extra,
                                .escape = s->escape,
                                .suffix = s->suffix};
    enum mxc_code code;
    if (s->kind != KIND_UNIGRAM && s->kind != KIND_BPE)
        return mxc_err_set(s->err, MXC_E_UNSUPPORTED,
                           "sentencepiece model: model_type %llu is not supported (unigram and "
                           "bpe are)",
                           (unsigned long long)s->kind);
    d->model = s->kind == KIND_BPE ? MXC_TOK_SPM : MXC_TOK_UNIGRAM;
    d->sentencepiece = d->has_decoder = true;
    d->add_space_prefix = s->add_prefix;
    if ((code = check_ids(s)) || (code = add_matched(d, s->err)) ||
        (code = mxc_tokdesc_add_step(d, &d->normalizers, &step, s->err)) ||
        (code = add_decoders(s)))
        return code;
    if (d->bos != MXC_TOK_NO_ID)
        return mxc_tokdesc_add_id(d, &d->prefix, d->bos, s->err);
    if (s->kind == KIND_UNIGRAM && d->eos != MXC_TOK_NO_ID)
        return mxc_tokdesc_add_id(d, &d->suffix, d->eos, s->err);
    return MXC_OK;
}

enum mxc_code mxc_sentencepiece_parse(const void *data, size_t size, const char *name,
                                      struct mxc_tokdesc *desc, struct mxc_err *err) {
    struct mxc_tokdesc d;
    struct model s = {.desc = &d,
                      .err = err,
                      .kind = KIND_UNIGRAM,
                      .add_prefix = true,
                      .strip_extra = true,
                      .escape = true,
                      .ids = {0, 1, 2, -1}};
    struct message m = {data, (const unsigned char *)data + size, err};
    mxc_tokdesc_init(&d);
    enum mxc_code code = read_model(&s, m);
    if (!code)
        code = finish(&s);
    if (code) {
        mxc_tokdesc_fini(&d);
        mxc_err_context(err, "%s", name);
    } else {
        *desc = d;
    }
    return code;
}
