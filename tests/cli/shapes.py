"""shapes.py PROGRAM MODEL_DIR: the examples of shapes-vl through `mlxcel generate`.

Prints each difference and `N passed, N failed`; exit status 1 when there is any.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile


def ask(program, model, folder, example):
    command = [program, "generate", model, "-p", example["question"], "--temp", "0", "-n", "60",
               "--json"]
    for name in example["images"]:
        command += ["--image", os.path.join(folder, name)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if result.returncode:
        return result.stderr, 0
    answer = json.loads(result.stdout)
    return answer["text"], answer["usage"]["prompt_tokens"]


def installed(program, model, folder, example):
    """As it lies after an installation, where the name is enough."""
    with tempfile.TemporaryDirectory() as prefix:
        os.makedirs(os.path.join(prefix, "bin"))
        os.makedirs(os.path.join(prefix, "share", "mlxcel", "models"))
        copy = shutil.copy(program, os.path.join(prefix, "bin", "mlxcel"))
        os.symlink(os.path.abspath(model),
                   os.path.join(prefix, "share", "mlxcel", "models", "shapes-vl"))
        return ask(copy, "shapes-vl", folder, example)


def main():
    program, model = sys.argv[1:]
    folder = os.path.join(model, "examples")
    with open(os.path.join(folder, "examples.json"), encoding="utf-8") as f:
        examples = json.load(f)
    failed = 0
    for example in examples:
        got = ask(program, model, folder, example)
        want = (example["answer"], example["prompt_tokens"])
        if got != want:
            failed += 1
            print(example["images"], example["question"], "gave", got, "not", want)
    by_name = installed(program, model, folder, examples[0])
    if by_name[0] != examples[0]["answer"]:
        failed += 1
        print("by its name:", by_name)
    print(f"{len(examples) + 1 - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
