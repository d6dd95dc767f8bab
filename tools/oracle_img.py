#!/usr/bin/env python3
"""Compares decoding and preprocessing of pictures with recorded answers of Pillow and transformers.

    tools/oracle_img.py [--show N] BINARY DIR

BINARY is the program img_probe of tests/tools; DIR holds files/, index.jsonl (size, sha256 of the RGB bytes,
errors, statistics per processor) and expect/samples512.safetensors (values at 512 places of what a
processor gives). Prints `N passed, N failed`; exit status 1 when something differs.

Where the record is not the requirement: transparency is laid over white, 16-bit grey is scaled, and
a wrong checksum, pixels that the data does not hold, and a palette that is not there are errors.
TIFF and PPM are refused by name.
"""
import argparse
import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile

CLIP_MEAN = [0.48145466, 0.4578275, 0.40821073]
CLIP_STD = [0.26862954, 0.26130258, 0.27577711]
HALF = [0.5, 0.5, 0.5]
CROPPED = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336},
           "do_center_crop": True, "image_mean": CLIP_MEAN, "image_std": CLIP_STD, "resample": 3}
PROCESSORS = {
    "clip336": {"image_processor_type": "CLIPImageProcessor", **CROPPED},
    "llava": {"image_processor_type": "LlavaImageProcessor", **CROPPED},
    "siglip384": {"image_processor_type": "SiglipImageProcessor", "resample": 3,
                  "size": {"height": 384, "width": 384}, "image_mean": HALF, "image_std": HALF},
    "qwen2vl": {"image_processor_type": "Qwen2VLImageProcessor"},
    "mllama560": {"image_processor_type": "MllamaImageProcessor", "resample": 2,
                  "size": {"height": 560, "width": 560}, "max_image_tiles": 4,
                  "image_mean": CLIP_MEAN, "image_std": CLIP_STD},
}
# The record has alpha dropped and 16-bit grey cut off: only the size is compared.
OUR_PIXELS = {"rgba8.png", "rgba8_interlaced.png", "rgba16.png", "graya8.png", "graya16.png",
              "rgb8_trns.png", "gray8_trns.png", "pal8_trns.png", "lossy_alpha.webp",
              "lossless_alpha.webp", "transparent.gif", "gray16.png", "gray16_interlaced.png"}
REFUSED = {"bad_crc.png", "dims_larger_than_data.png", "pal_missing.png", "rgb.tiff", "rgb.ppm"}


def samples(path):
    with open(path, "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(size))
        data = f.read()
    values = {}
    for name, t in header.items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            values[name] = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
    return values


class Asker:
    def __init__(self, binary, scratch):
        self.out = os.path.join(scratch, "out")
        self.process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def ask(self, *words):
        self.process.stdin.write("\t".join([words[0], self.out, *words[1:]]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{words[0]}: the program ended with status {self.process.wait()}")
        return json.loads(line)

    def bytes(self):
        with open(self.out, "rb") as f:
            return f.read()


def check_decoding(row, answer, data):
    """What is wrong, or None."""
    name = row["file"]
    if "decode_error" in row or name in REFUSED:
        return None if "error" in answer else "decoded, but must be refused"
    if "error" in answer:
        return answer["error"]
    if answer["size_wh"] != row["rgb_size_wh"]:
        return f"size {answer['size_wh']}, not {row['rgb_size_wh']}"
    if name not in OUR_PIXELS and hashlib.sha256(data).hexdigest() != row["rgb_sha256"]:
        return "other pixels"
    return None


def check_processor(name, expected, answer, data, places):
    if expected and "error" in expected:
        return None if "error" in answer else "processed, but must be refused"
    if "error" in answer:
        return answer["error"]
    if expected.get("image_grid_thw", [answer["grid_thw"]])[0] != answer["grid_thw"]:
        return f"grid {answer['grid_thw']}, not {expected['image_grid_thw'][0]}"
    if "aspect_ratio_ids" in expected:
        mask = [int(i < answer["n_tiles"]) for i in range(answer["n_planes"])]
        if expected["aspect_ratio_ids"] != [[answer["aspect_ratio_id"]]] or \
                expected["aspect_ratio_mask"] != [[mask]]:
            return f"aspect ratio {answer['aspect_ratio_id']}, mask {mask}"
    count = len(data) // 4
    size = 1
    for n in expected["shape"]:
        size *= n
    if count != size:
        return f"{count} values, not {size}"
    if places is None:
        return None
    worst = 0.0
    for k, value in enumerate(places):
        at = (k * 2654435761 + 12345) % size
        got, = struct.unpack_from("<f", data, at * 4)
        worst = max(worst, abs(got - value))
    return None if worst <= 1e-6 else f"differs by {worst:.2g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", type=int, default=20, help="differences to print")
    parser.add_argument("binary", metavar="BINARY")
    parser.add_argument("folder", metavar="DIR")
    args = parser.parse_args()
    with open(os.path.join(args.folder, "index.jsonl")) as f:
        rows = [json.loads(line) for line in f]
    recorded = samples(os.path.join(args.folder, "expect", "samples512.safetensors"))
    passed, wrong = 0, []
    with tempfile.TemporaryDirectory() as scratch:
        for name, config in PROCESSORS.items():
            os.mkdir(os.path.join(scratch, name))
            with open(os.path.join(scratch, name, "preprocessor_config.json"), "w") as f:
                json.dump(config, f)
        asker = Asker(args.binary, scratch)
        for row in rows:
            path = os.path.join(args.folder, "files", row["file"])
            answer = asker.ask(path)
            what = check_decoding(row, answer, None if "error" in answer else asker.bytes())
            passed, wrong = (passed + 1, wrong) if not what else \
                (passed, wrong + [f"{row['file']}: {what}"])
            if row["file"] in REFUSED | OUR_PIXELS or "proc" not in row:
                continue
            for name in PROCESSORS:
                places = recorded.get(f"{row['file']}/{name}/pil")
                pil, tv = row["proc"].get(name + "/pil", {}), row["proc"].get(name + "/tv", {})
                expected = pil if "error" in pil else tv
                if not expected:
                    continue
                answer = asker.ask(path, os.path.join(scratch, name))
                what = check_processor(name, expected, answer,
                                       None if "error" in answer else asker.bytes(), places)
                passed, wrong = (passed + 1, wrong) if not what else \
                    (passed, wrong + [f"{row['file']} {name}: {what}"])
        asker.process.stdin.close()
        asker.process.wait()
    for line in wrong[:args.show]:
        print(line)
    print(f"{passed} passed, {len(wrong)} failed")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
