/* Decoding against Pillow's pixels (tests/data/image/decode.json), damage of every kind, limits,
 * orientation, and what is refused by name. */
#define _GNU_SOURCE
#include "data.h"

#include "base/mem.h"
#include "image/codec.h"

#include <string.h>

static const char *text_of(const json_t *row, const char *key) {
    return json_string_value(json_object_get(row, key));
}

static int int_of(const json_t *row, const char *key) {
    return (int)json_integer_value(json_object_get(row, key));
}

static void equal_to_pillow(void **state) {
    (void)state;
    json_t *rows = data_json("decode.json"), *row;
    size_t i, right = 0;
    json_array_foreach(rows, i, row) {
        const char *name = text_of(row, "file");
        struct file f = data_file(name);
        struct mxc_image image;
        struct mxc_image_info info;
        struct mxc_err err = {0};
        enum mxc_code code = mxc_image_decode(f.data, f.size, NULL, &image, &err);
        if (json_is_true(json_object_get(row, "refused"))) {
            if (!code)
                fail_msg("%s was decoded", name);
            assert_int_equal(code, err.code);
            assert_true(strlen(err.message) > 5 && !strchr(err.message, '\n'));
        } else {
            char hash[17];
            if (code)
                fail_msg("%s: %s", name, err.message);
            assert_int_equal(mxc_image_probe(f.data, f.size, NULL, &info, &err), MXC_OK);
            assert_int_equal(info.width, image.width);
            assert_int_equal(info.height, image.height);
            data_hash(image.rgb, (size_t)image.width * (size_t)image.height * 3, hash);
            if (image.width != int_of(row, "width") || image.height != int_of(row, "height") ||
                strcmp(hash, text_of(row, "hash")) != 0)
                fail_msg("%s: %d x %d, %s", name, image.width, image.height, hash);
            mxc_image_fini(&image);
        }
        data_free(&f);
        right++;
    }
    assert_true(right > 100);
    json_decref(rows);
}

static const char *const whole[] = {"rgb.png",          "palette.png",    "gray4_interlaced.png",
                                    "rgba16.png",       "two.jpg",        "jpeg_progressive.jpg",
                                    "restart_420.jpg",  "cmyk.jpg",       "lossy.webp",
                                    "lossy_alpha.webp", "anim_part.webp", "static.gif",
                                    "canvas.gif",       "pal8.bmp",       "rle8.bmp",
                                    "rle4.bmp",         "rgb565.bmp",     "exif_late.png"};

/* Every beginning of a file is an error that names the format, or (metadata behind the picture cut
 * off) the same picture. */
static void every_truncation(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        struct file f = data_file(whole[i]);
        struct mxc_image image, cut;
        struct mxc_err err;
        assert_int_equal(mxc_image_decode(f.data, f.size, NULL, &image, &err), MXC_OK);
        size_t step = f.size > 700 ? f.size / 300 : 1;
        for (size_t n = 0; n < f.size; n += step) {
            char *copy = mxc_mem_alloc(n ? n : 1); /* its own block, so that a read beyond shows */
            assert_non_null(copy);
            memcpy(copy, f.data, n);
            enum mxc_code code = mxc_image_decode(copy, n, NULL, &cut, &err);
            if (!code) {
                assert_true(f.size - n <= 4);
                assert_memory_equal(cut.rgb, image.rgb, (size_t)image.width * (size_t)image.height);
                mxc_image_fini(&cut);
            } else if (n >= 16) {
                assert_int_equal(code, MXC_E_FORMAT);
                assert_non_null(strchr(err.message, ':'));
            }
            mxc_mem_free(copy);
        }
        mxc_image_fini(&image);
        data_free(&f);
    }
}

/* Flipped bits: any outcome but a crash, and the sizes that a success reports are the buffer's. */
static void damage(void **state) {
    (void)state;
    uint32_t seed = 9;
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        struct file f = data_file(whole[i]);
        for (int round = 0; round < 150; round++) {
            struct mxc_image image;
            struct mxc_err err;
            seed = seed * 1664525u + 1013904223u;
            size_t at = (seed >> 8) % f.size;
            char old = f.data[at];
            f.data[at] = (char)(old ^ (1 << (seed & 7)));
            struct mxc_image_options small = {.max_pixels = 1 << 16};
            if (!mxc_image_decode(f.data, f.size, &small, &image, &err)) {
                volatile uint8_t last =
                    image.rgb[(size_t)image.width * (size_t)image.height * 3 - 1];
                (void)last;
                mxc_image_fini(&image);
            }
            f.data[at] = old;
        }
        data_free(&f);
    }
}

static void refuses(const char *bytes, size_t size, enum mxc_code expected, const char *words) {
    struct mxc_image image;
    struct mxc_err err;
    enum mxc_code code = mxc_image_decode(bytes, size, NULL, &image, &err);
    if (code != expected || !strstr(err.message, words))
        fail_msg("expected %d \"%s\", got %d \"%s\"", expected, words, code,
                 code ? err.message : "");
}

static void foreign_formats(void **state) {
    (void)state;
#define REFUSES(literal, words) refuses(literal, sizeof(literal) - 1, MXC_E_UNSUPPORTED, words)
    REFUSES("II*\0\x08\0\0\0", "TIFF");
    REFUSES("MM\0*\0\0\0\x08", "TIFF");
    REFUSES("P6\n97 63\n255\n", "PPM");
    REFUSES("\0\0\0\x18"
            "ftypheic\0\0\0\0",
            "HEIC");
    REFUSES("\0\0\0\x18"
            "ftypavif\0\0\0\0",
            "AVIF");
    REFUSES("\0\0\0\x18"
            "ftypisom\0\0\0\0",
            "MP4");
    REFUSES("\xff\x0a....", "JPEG XL");
    REFUSES("\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL");
    REFUSES("<?xml version=\"1.0\"?>\n<svg xmlns=\"x\"/>", "SVG");
    REFUSES("  <svg/>", "SVG");
    REFUSES("%PDF-1.7", "PDF");
#undef REFUSES
    refuses("hello, world", 12, MXC_E_FORMAT, "no picture");
    refuses("<html>", 6, MXC_E_FORMAT, "no picture");
    refuses("", 0, MXC_E_FORMAT, "empty");
    refuses("BMW drives", 10, MXC_E_FORMAT, "BMP: truncated");
}

/* A header of 30000 x 30000: refused before anything is allocated. */
static void limits(void **state) {
    (void)state;
    static const char bomb[] =
        "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x75\x30\0\0\x75\x30\1\0\0\0\0....";
    struct mxc_image image;
    struct mxc_image_info info;
    struct mxc_err err;
    mxc_mem_fail_at(1);
    uint64_t before = mxc_mem_calls();
    assert_int_equal(mxc_image_decode(bomb, sizeof bomb - 1, NULL, &image, &err), MXC_E_LIMIT);
    assert_int_equal(mxc_mem_calls(), before);
    mxc_mem_fail_at(0);
    assert_non_null(strstr(err.message, "PNG: 30000 x 30000"));
    struct mxc_image_options more = {.max_pixels = 900000000};
    assert_int_equal(mxc_image_probe(bomb, sizeof bomb - 1, &more, &info, &err), MXC_OK);
    assert_int_equal(info.width, 30000);
    more.max_pixels--;
    assert_int_equal(mxc_image_probe(bomb, sizeof bomb - 1, &more, &info, &err), MXC_E_LIMIT);

    /* 64 megapixels unless somebody says otherwise */
    static const char most[] = "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x20\0\0\0\x20\0\1\0\0\0\0....";
    static const char above[] = "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x20\0\0\0\x20\1\1\0\0\0\0....";
    assert_int_equal(mxc_image_probe(most, sizeof most - 1, NULL, &info, &err), MXC_OK);
    assert_true(info.width == 8192 && info.height == 8192);
    assert_int_equal(mxc_image_probe(above, sizeof above - 1, NULL, &info, &err), MXC_E_LIMIT);

    struct file f = data_file("rgb.png"); /* 37 x 53 */
    struct mxc_image_options exact = {.max_pixels = 37 * 53};
    assert_int_equal(mxc_image_decode(f.data, f.size, &exact, &image, &err), MXC_OK);
    mxc_image_fini(&image);
    exact.max_pixels--;
    assert_int_equal(mxc_image_decode(f.data, f.size, &exact, &image, &err), MXC_E_LIMIT);
    data_free(&f);
    /* one side beyond any use, though the pixels are few */
    static const char thin[] = "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\x20\0\0\0\0\0\1\1\0\0\0\0....";
    assert_int_equal(mxc_image_probe(thin, sizeof thin - 1, NULL, &info, &err), MXC_E_LIMIT);
}

static void background(void **state) {
    (void)state;
    struct file f = data_file("transparent.gif");
    struct mxc_image white, red;
    struct mxc_err err;
    struct mxc_image_options options = {.background = {255, 0, 0}};
    assert_int_equal(mxc_image_decode(f.data, f.size, NULL, &white, &err), MXC_OK);
    assert_int_equal(mxc_image_decode(f.data, f.size, &options, &red, &err), MXC_OK);
    size_t n = (size_t)white.width * (size_t)white.height, changed = 0;
    for (size_t i = 0; i < n; i++)
        if (memcmp(white.rgb + i * 3, red.rgb + i * 3, 3) != 0) {
            assert_memory_equal(white.rgb + i * 3, "\xff\xff\xff", 3);
            assert_memory_equal(red.rgb + i * 3, "\xff\0\0", 3);
            changed++;
        }
    assert_true(changed > 0 && changed < n);
    mxc_image_fini(&white);
    mxc_image_fini(&red);
    data_free(&f);
    assert_int_equal(mxc_image_over(7, 255, 200), 7);
    assert_int_equal(mxc_image_over(7, 0, 200), 200);
    assert_int_equal(mxc_image_over(0, 128, 255), 127);
}

/* The stored picture is 3 x 2, pixels 0 to 5; what each orientation shows, row by row. */
static void orientations(void **state) {
    (void)state;
    static const uint8_t shown[9][6] = {
        [1] = {0, 1, 2, 3, 4, 5}, [2] = {2, 1, 0, 5, 4, 3}, [3] = {5, 4, 3, 2, 1, 0},
        [4] = {3, 4, 5, 0, 1, 2}, [5] = {0, 3, 1, 4, 2, 5}, [6] = {3, 0, 4, 1, 5, 2},
        [7] = {5, 2, 4, 1, 3, 0}, [8] = {2, 5, 1, 4, 0, 3},
    };
    for (int o = 1; o <= 8; o++) {
        struct mxc_image image;
        assert_int_equal(mxc_image_init(3, 2, &image, NULL), MXC_OK);
        for (int i = 0; i < 18; i++)
            image.rgb[i] = (uint8_t)(i / 3);
        assert_int_equal(mxc_image_turn(&image, o, NULL), MXC_OK);
        assert_int_equal(image.width, o > 4 ? 2 : 3);
        for (int i = 0; i < 18; i++)
            assert_int_equal(image.rgb[i], shown[o][i / 3]);
        mxc_image_fini(&image);
    }
}

static void exif_that_is_odd(void **state) {
    (void)state;
#define ORIENTATION(literal)                                                                       \
    mxc_exif_orientation((struct mxc_bytes){(const uint8_t *)(literal), sizeof(literal) - 1})
    assert_int_equal(ORIENTATION("II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0"), 6);
    assert_int_equal(ORIENTATION("Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\4\0\0\0\1\0\0\0\3"), 3);
    assert_int_equal(ORIENTATION("II*\0\x08\0\0\0\1\0\x12\1\1\0\1\0\0\0\x08\0\0\0"), 8);
    assert_int_equal(ORIENTATION("II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\x09\0\0\0"), 1);
    assert_int_equal(ORIENTATION("II*\0\x08\0\0\0\1\0\x12\1\5\0\1\0\0\0\6\0\0\0"), 1);
    assert_int_equal(ORIENTATION("II*\0\x08\0\0\0\xff\xff\x12\1\3\0\1\0\0\0"), 1);
    assert_int_equal(ORIENTATION("II*\0\xff\xff\xff\xff\1\0"), 1);
    assert_int_equal(ORIENTATION("II*\0\x08\0\0\0"), 1);
    assert_int_equal(ORIENTATION(""), 1);
#undef ORIENTATION
}

static bool decode_step(void *context) {
    struct file *f = context;
    struct mxc_image image;
    struct mxc_err err;
    enum mxc_code code = mxc_image_decode(f->data, f->size, NULL, &image, &err);
    if (code) {
        assert_int_equal(code, MXC_E_NOMEM);
        return false;
    }
    mxc_image_fini(&image);
    return true;
}

static void no_memory(void **state) {
    (void)state;
    static const char *const names[] = {"exif_o6.jpg",      "cmyk.jpg",   "gray4_interlaced.png",
                                        "lossy_alpha.webp", "static.gif", "pal8.bmp"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct file f = data_file(names[i]);
        data_fail_each(decode_step, &f);
        data_free(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_to_pillow), cmocka_unit_test(every_truncation),
        cmocka_unit_test(damage),          cmocka_unit_test(foreign_formats),
        cmocka_unit_test(limits),          cmocka_unit_test(background),
        cmocka_unit_test(orientations),    cmocka_unit_test(exif_that_is_odd),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests_name("image_decode", tests, NULL, NULL);
}
