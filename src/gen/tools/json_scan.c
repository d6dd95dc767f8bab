/* A push-down automaton of RFC 8259 with one bit of stack per level. Nothing is allocated. */
#include "gen/tools/json_scan.h"

#include <string.h>

enum state { VALUE, FIRST_ITEM, FIRST_KEY, KEY, COLON, AFTER, STRING, ESCAPE, HEX, NUMBER, WORD };
/* Parts of a number; those from ZERO on may end it. */
enum number { SIGN, POINT, EXPONENT, EXPONENT_SIGN, ZERO, WHOLE, FRACTION, POWER };

void mxc_json_scan_init(struct mxc_json_scan *scan) {
    memset(scan, 0, sizeof *scan);
}

static bool in_object(const struct mxc_json_scan *s) {
    int at = s->depth - 1;
    return s->depth > 0 && (s->is_object[at >> 3] >> (at & 7) & 1);
}

static bool open_level(struct mxc_json_scan *s, bool object) {
    if (s->depth >= MXC_JSON_SCAN_DEPTH)
        return false;
    unsigned bit = 1u << (s->depth & 7);
    unsigned char *at = &s->is_object[s->depth >> 3];
    *at = (unsigned char)(object ? *at | bit : *at & ~bit);
    s->depth++;
    s->state = object ? FIRST_KEY : FIRST_ITEM;
    return true;
}

static enum mxc_scan value_ended(struct mxc_json_scan *s) {
    s->state = AFTER;
    return s->depth ? MXC_SCAN_GO : MXC_SCAN_END;
}

static enum mxc_scan begin_value(struct mxc_json_scan *s, char c) {
    static const char *const words[] = {"true", "false", "null"};
    if (c == '{' || c == '[')
        return open_level(s, c == '{') ? MXC_SCAN_GO : MXC_SCAN_BAD;
    if (c == '"') {
        s->state = STRING;
        s->number = 0;
        return MXC_SCAN_GO;
    }
    if (c == '-' || (c >= '0' && c <= '9')) {
        s->state = NUMBER;
        s->number = c == '-' ? SIGN : c == '0' ? ZERO : WHOLE;
        return MXC_SCAN_GO;
    }
    for (size_t i = 0; i < 3; i++)
        if (c == words[i][0]) {
            s->state = WORD;
            s->word = words[i] + 1;
            return MXC_SCAN_GO;
        }
    return MXC_SCAN_BAD;
}

static enum mxc_scan in_number(struct mxc_json_scan *s, char c) {
    bool digit = c >= '0' && c <= '9';
    enum number next;
    switch ((enum number)s->number) {
    case SIGN:
        next = c == '0' ? ZERO : WHOLE;
        break;
    case POINT:
    case FRACTION:
        next = FRACTION;
        break;
    case EXPONENT:
    case EXPONENT_SIGN:
    case POWER:
        next = POWER;
        break;
    case ZERO: /* no digit may follow */
        next = ZERO;
        break;
    case WHOLE:
    default:
        next = WHOLE;
    }
    if (digit && s->number != ZERO) {
        s->number = (unsigned char)next;
        return MXC_SCAN_GO;
    }
    if (c == '.' && (s->number == ZERO || s->number == WHOLE)) {
        s->number = POINT;
        return MXC_SCAN_GO;
    }
    if ((c == 'e' || c == 'E') &&
        (s->number == ZERO || s->number == WHOLE || s->number == FRACTION)) {
        s->number = EXPONENT;
        return MXC_SCAN_GO;
    }
    if ((c == '+' || c == '-') && s->number == EXPONENT) {
        s->number = EXPONENT_SIGN;
        return MXC_SCAN_GO;
    }
    if (s->number < ZERO || digit)
        return MXC_SCAN_BAD;
    s->state = AFTER;
    return MXC_SCAN_BEFORE;
}

/* Between tokens. */
static enum mxc_scan structural(struct mxc_json_scan *s, char c) {
    if (c == ' ' || c == '\n' || c == '\r' || c == '\t')
        return MXC_SCAN_GO;
    switch ((enum state)s->state) {
    case FIRST_ITEM:
        if (c == ']') {
            s->depth--;
            return value_ended(s);
        }
        return begin_value(s, c);
    case FIRST_KEY:
        if (c == '}') {
            s->depth--;
            return value_ended(s);
        }
        /* fall through */
    case KEY:
        if (c != '"')
            return MXC_SCAN_BAD;
        s->state = STRING;
        s->number = 1; /* a key: a colon follows */
        return MXC_SCAN_GO;
    case COLON:
        if (c != ':')
            return MXC_SCAN_BAD;
        s->state = VALUE;
        return MXC_SCAN_GO;
    case AFTER:
        if (c == ',' && s->depth) {
            s->state = in_object(s) ? KEY : VALUE;
            return MXC_SCAN_GO;
        }
        if (s->depth && c == (in_object(s) ? '}' : ']')) {
            s->depth--;
            return value_ended(s);
        }
        return MXC_SCAN_BAD;
    default:
        return begin_value(s, c);
    }
}

static enum mxc_scan in_string(struct mxc_json_scan *s, char c) {
    if (s->state == ESCAPE) {
        if (!strchr("\"\\/bfnrtu", c) || !c)
            return MXC_SCAN_BAD;
        s->state = c == 'u' ? HEX : STRING;
        s->hex = 0;
        return MXC_SCAN_GO;
    }
    if (s->state == HEX) {
        if (!strchr("0123456789abcdefABCDEF", c) || !c)
            return MXC_SCAN_BAD;
        if (++s->hex == 4)
            s->state = STRING;
        return MXC_SCAN_GO;
    }
    if (c == '\\') {
        s->state = ESCAPE;
    } else if (c == '"') {
        if (!s->number)
            return value_ended(s);
        s->number = 0;
        s->state = COLON;
    }
    return MXC_SCAN_GO;
}

enum mxc_scan mxc_json_scan_push(struct mxc_json_scan *s, char c, struct mxc_buf *copy) {
    enum mxc_scan result;
    bool raw = s->state == STRING && (unsigned char)c < 0x20;
    switch ((enum state)s->state) {
    case STRING:
    case ESCAPE:
    case HEX:
        result = in_string(s, c);
        break;
    case NUMBER:
        result = in_number(s, c);
        if (result == MXC_SCAN_BEFORE && s->depth)
            result = structural(s, c);
        break;
    case WORD:
        if (c != *s->word)
            return MXC_SCAN_BAD;
        result = *++s->word ? MXC_SCAN_GO : value_ended(s);
        break;
    default:
        result = structural(s, c);
    }
    if (copy && result <= MXC_SCAN_END) {
        if (raw)
            (void)mxc_buf_printf(copy, "\\u%04x", (unsigned)(unsigned char)c);
        else
            (void)mxc_buf_putc(copy, c);
    }
    return result;
}
