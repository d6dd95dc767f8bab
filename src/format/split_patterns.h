/* Patterns that cut a text before BPE, as the models were published with them; for files that name
 * a pattern or a family instead of giving one. */
#ifndef MXC_FORMAT_SPLIT_PATTERNS_H
#define MXC_FORMAT_SPLIT_PATTERNS_H

/* Endings that several patterns share. */
#define MXC_SPLIT_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define MXC_SPLIT_NEWLINES     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define MXC_SPLIT_CL100K(digits)                                                                   \
    MXC_SPLIT_CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                                \
                           "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" MXC_SPLIT_NEWLINES
#define MXC_SPLIT_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define MXC_SPLIT_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define MXC_SPLIT_O200K(suffix, digits)                                                            \
    "[^\\r\\n\\p{L}\\p{N}]?" MXC_SPLIT_UPPER "*" MXC_SPLIT_LOWER "+" suffix                        \
    "|[^\\r\\n\\p{L}\\p{N}]?" MXC_SPLIT_UPPER "+" MXC_SPLIT_LOWER "*" suffix "|" digits            \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" MXC_SPLIT_NEWLINES
#define MXC_SPLIT_QWEN35                                                                           \
    MXC_SPLIT_CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"                         \
                           "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" MXC_SPLIT_NEWLINES

#endif
