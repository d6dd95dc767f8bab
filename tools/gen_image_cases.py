#!/usr/bin/env python3
"""Makes tests/data/image: pictures, and what Pillow and transformers make of them.

    tools/gen_image_cases.py OUT PICTURES CASES

PICTURES is a folder of pictures (golden images), CASES one with files/ and index.jsonl (decoder
cases). Needs Pillow 13 and transformers 5. OUT/decode.json holds size and hash of the RGB bytes, or
that the file is refused; OUT/resize.json hashes of resized noise (noise() here and in the test);
OUT/process.json plans and hashes of float32 values. Hashes are FNV-1a, 64 bits, in hexadecimal.
"""
import io
import json
import logging
import os
import shutil
import struct
import sys
import warnings
import zlib

import numpy as np
from PIL import Image, ImageOps

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
LARGEST = 40_000
# Damaged in ways that Pillow patches up, or of formats we leave out.
REFUSED = {"bad_crc.png", "dims_larger_than_data.png", "pal_missing.png", "rgb.tiff", "rgb.ppm"}
LEFT_OUT = {"png_named.jpg", "png_noext", "jpeg_named.png", "rgb8.png", "gamma_iccp_text.png",
            "opt_huff.jpg", "trailing_garbage.jpg"}


def fnv(data):
    # in steps over a table of the powers would be faster; the inputs are small
    h = 0xcbf29ce484222325
    for b in data:
        h = (h ^ b) * 0x100000001b3 & 0xffffffffffffffff
    return f"{h:016x}"


def noise(width, height, seed):
    """The same bytes as noise() in tests/image: the high bytes of a 32-bit LCG."""
    n = width * height * 3
    out = np.empty(n, np.uint8)
    x = seed
    for i in range(n):
        x = (x * 1664525 + 1013904223) & 0xffffffff
        out[i] = x >> 24
    return out.reshape(height, width, 3)


def upright_on_white(data):
    image = Image.open(io.BytesIO(data))
    if image.mode.startswith("I"):
        grey = (np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8)
        return Image.fromarray(grey).convert("RGB")
    image.seek(0)
    image = ImageOps.exif_transpose(image)
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def bmp(header, bits, width, height, compression, pixels, palette=b"", masks=b"", colours=0):
    if header == 12:
        info = struct.pack("<IHHHH", 12, width, height, 1, bits)
    else:
        info = struct.pack("<IiiHHIIiiII", header, width, height, 1, bits, compression, len(pixels),
                           2835, 2835, colours, 0)
        info += masks + bytes(header - 40 - len(masks)) if header > 40 else masks
    offset = 14 + len(info) + len(palette)
    return b"BM" + struct.pack("<IHHI", offset + len(pixels), 0, 0, offset) + info + palette + pixels


def made_here():
    """name -> bytes: what the decoder cases do not have."""
    out = {}
    rng = np.random.default_rng(7)
    grey16 = rng.integers(0, 65536, 15 * 8, dtype=np.uint16)
    out["rgb555.bmp"] = bmp(40, 16, 15, 8, 0, np.pad(grey16.reshape(8, 15), ((0, 0), (0, 1)))
                            .astype("<u2").tobytes())
    out["rgb565.bmp"] = bmp(40, 16, 15, 8, 3, np.pad(grey16.reshape(8, 15), ((0, 0), (0, 1)))
                            .astype("<u2").tobytes(), masks=struct.pack("<III", 0xF800, 0x7E0, 0x1F))
    alpha = rng.integers(0, 256, 15 * 8 * 4, dtype=np.uint8).tobytes()
    out["alpha_v4.bmp"] = bmp(108, 32, 15, 8, 3, alpha,
                              masks=struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, 0xFF000000))
    palette = rng.integers(0, 256, (16, 4), dtype=np.uint8)
    palette[:, 3] = 0
    out["pal4.bmp"] = bmp(40, 4, 15, 8, 0, rng.integers(0, 256, 8 * 8, dtype=np.uint8).tobytes(),
                          palette.tobytes())
    out["os2.bmp"] = bmp(12, 4, 15, 8, 0, rng.integers(0, 256, 8 * 8, dtype=np.uint8).tobytes(),
                         palette[:, :3].tobytes())
    rle8 = bytes([5, 1, 0, 4, 2, 3, 4, 5, 3, 6, 0, 0, 12, 7, 0, 0, 0, 3, 9, 9, 9, 0, 9, 8, 0, 1])
    out["rle8.bmp"] = bmp(40, 8, 12, 3, 1, rle8, palette.tobytes(), colours=16)
    rle4 = bytes([5, 0x12, 0, 5, 0x23, 0x45, 0x60, 0, 2, 7, 0, 0, 12, 0x78, 0, 0, 12, 0x91, 0, 1])
    out["rle4.bmp"] = bmp(40, 4, 12, 3, 2, rle4, palette.tobytes())

    def saved(image, kind, **options):
        b = io.BytesIO()
        image.save(b, kind, **options)
        return b.getvalue()

    y, x = np.mgrid[0:29, 0:43]
    smooth = np.stack([x * 5, y * 7, x * y // 5], -1).clip(0, 255).astype(np.uint8)
    picture = Image.fromarray(smooth)
    cmyk = Image.fromarray(np.concatenate([smooth, 255 - smooth[..., :1]], -1), "CMYK")
    out["cmyk_progressive.jpg"] = saved(cmyk, "JPEG", progressive=True)
    ycck = bytearray(out["cmyk_progressive.jpg"])
    ycck[ycck.index(b"Adobe\0") + 11] = 2  # the same numbers, read as YCCK
    out["ycck.jpg"] = bytes(ycck)
    out["rgb_direct.jpg"] = saved(picture, "JPEG", keep_rgb=True)
    out["sub_411.jpg"] = saved(picture, "JPEG", subsampling="4:1:1", quality=60)
    small = Image.fromarray(smooth[:10, :14]).quantize(7)
    frame = bytearray(saved(small, "GIF", interlace=1))
    struct.pack_into("<HH", frame, 6, 20, 16)  # a canvas that the frame does not fill
    out["canvas.gif"] = bytes(frame)
    at = frame.index(b",", 13 + 3 * 8)
    struct.pack_into("<HH", frame, at + 1, 4, 3)
    out["canvas_shifted.gif"] = bytes(frame)
    rgba = Image.fromarray(np.concatenate([smooth, (x * 6)[..., None].clip(0, 255).astype(np.uint8)],
                                          -1))
    blank = Image.new("RGBA", (43, 29))
    blank.paste(rgba.crop((0, 0, 20, 12)), (8, 6))
    out["anim_part.webp"] = saved(blank, "WEBP", save_all=True, append_images=[rgba], lossless=True,
                                  duration=50)
    big = zlib.compress(b"".join(b"\0" + bytes([i & 255] * 120) for i in range(30)), 1)
    chunk = lambda k, d: struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d))
    head = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 40, 30, 8, 2, 0, 0, 0))
    exif = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0\0\0\0\0"
    out["exif_late.png"] = head + chunk(b"IDAT", big) + chunk(b"eXIf", exif) + chunk(b"IEND", b"")
    out["no_end.png"] = head + chunk(b"IDAT", big)
    return out


def decode_cases(out, pictures, cases):
    rows = []

    def add(name, data, refused):
        with open(os.path.join(out, name), "wb") as f:
            f.write(data)
        row = {"file": name}
        if refused:
            row["refused"] = True
        else:
            image = upright_on_white(data)
            row.update(width=image.width, height=image.height, hash=fnv(image.tobytes()))
        rows.append(row)

    for name in sorted(os.listdir(pictures)):
        if name.endswith((".png", ".jpg")):
            with open(os.path.join(pictures, name), "rb") as f:
                add(name, f.read(), False)
    with open(os.path.join(cases, "index.jsonl")) as f:
        for line in f:
            case = json.loads(line)
            name = case["file"]
            if case["bytes"] > LARGEST or name in LEFT_OUT or os.path.exists(f"{out}/{name}"):
                continue
            with open(os.path.join(cases, "files", name), "rb") as g:
                add(name, g.read(), "decode_error" in case or name in REFUSED)
    for name, data in made_here().items():
        add(name, data, name == "no_end.png")
    return rows


def resize_cases():
    rows, seed = [], 1
    sizes = [((40, 30), (20, 15)), ((40, 30), (80, 71)), ((33, 65), (32, 64)), ((97, 63), (14, 63)),
             ((97, 63), (97, 10)), ((64, 200), (60, 20)), ((5, 31), (100, 13)), ((200, 40), (30, 37)),
             ((1, 1), (7, 5)), ((50, 1), (3, 1)), ((3, 120), (1, 1)), ((130, 131), (129, 130)),
             ((100, 90), (60, 9)), ((100, 90), (60, 10)), ((100, 90), (60, 11)), ((31, 33), (31, 33))]
    for (w, h), to in sizes:
        for filter in range(6):
            seed += 1
            image = Image.fromarray(noise(w, h, seed)).resize(to, filter)
            rows.append({"from": [w, h], "to": list(to), "filter": filter, "seed": seed,
                         "hash": fnv(image.tobytes())})
    return rows


def processors():
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
    from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
    classes = {"Qwen2VL": Qwen2VLImageProcessorPil, "CLIP": CLIPImageProcessorPil,
               "Llava": LlavaImageProcessorPil, "Siglip": SiglipImageProcessorPil,
               "Mllama": MllamaImageProcessorPil, "Idefics3": Idefics3ImageProcessorPil,
               "SmolVLM": Idefics3ImageProcessorPil, "Gemma3": Gemma3ImageProcessorPil}
    side = lambda n: {"height": n, "width": n}
    qwen = {"min_pixels": 3136, "max_pixels": 6272}
    return classes, [
        ("Qwen2VL", qwen), ("Qwen2VL", {"patch_size": 16, "image_mean": [0.5] * 3,
                                        "image_std": [0.5] * 3,
                                        "size": {"shortest_edge": 4096, "longest_edge": 8192}}),
        ("Qwen2VL", {"merge_size": 3, "temporal_patch_size": 1, "resample": 1, **qwen}),
        ("CLIP", {"size": {"shortest_edge": 56}, "crop_size": side(56)}),
        ("CLIP", {"size": 40, "crop_size": 51, "do_normalize": False}),
        ("CLIP", {"do_resize": False, "do_rescale": False, "crop_size": {"height": 75, "width": 44}}),
        ("Llava", {"do_pad": True, "size": {"shortest_edge": 42}, "crop_size": side(42)}),
        ("Siglip", {"size": side(56)}),
        ("Siglip", {"size": [25, 35], "resample": 5, "image_mean": 0.1, "image_std": [0.1, 0.2, 0.3],
                    "rescale_factor": 0.01}),
        ("Mllama", {"size": side(56), "max_image_tiles": 4}),
        ("Mllama", {"size": side(20), "max_image_tiles": 9}),
        ("Idefics3", {"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}}),
        ("SmolVLM", {"size": {"longest_edge": 200}, "max_image_size": {"longest_edge": 200}}),
        ("Idefics3", {"size": {"longest_edge": 60}, "max_image_size": {"longest_edge": 30},
                      "do_image_splitting": False}),
        ("Gemma3", {"size": side(56)}),
        ("Gemma3", {"size": side(28), "do_pan_and_scan": True, "pan_and_scan_min_crop_size": 20,
                    "pan_and_scan_max_num_crops": 4, "pan_and_scan_min_ratio_to_activate": 1.2}),
    ]


def process_cases(out):
    classes, configs = processors()
    nested = {"Mllama", "Idefics3", "SmolVLM"}
    rows = []
    for kind, config in configs:
        for name in ("rgb.png", "alpha.png", "tall.jpg", "grey.png"):
            with open(os.path.join(out, name), "rb") as f:
                image = upright_on_white(f.read())
            tiled = kind in ("Idefics3", "SmolVLM")
            more = {"return_row_col_info": True} if tiled else {}
            got = classes[kind](**config)(images=[[image]] if kind in nested else [image],
                                          return_tensors="np", **more)
            values = np.ascontiguousarray(got["pixel_values"], np.float32)
            row = {"config": {"image_processor_type": kind + "ImageProcessor", **config},
                   "file": name, "count": int(values.size), "hash": fnv(values.tobytes())}
            if "image_grid_thw" in got:
                row["grid_thw"] = got["image_grid_thw"][0].tolist()
            if "aspect_ratio_ids" in got:
                row["aspect_ratio_id"] = int(got["aspect_ratio_ids"][0][0])
                row["n_tiles"] = int(got["aspect_ratio_mask"].sum())
            if tiled:
                row["rows_columns"] = [int(got["rows"][0][0]), int(got["cols"][0][0])]
                assert got["pixel_attention_mask"].min() == 1
            rows.append(row)
    return rows


def write(path, rows):
    with open(path, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n")


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    out, pictures, cases = sys.argv[1:]
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    write(os.path.join(out, "decode.json"), decode_cases(out, pictures, cases))
    write(os.path.join(out, "resize.json"), resize_cases())
    write(os.path.join(out, "process.json"), process_cases(out))


if __name__ == "__main__":
    main()
