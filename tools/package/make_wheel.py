#!/usr/bin/env python3
"""Packs a program and tools/package/llm_batch into a wheel, with Python's standard library alone.

    make_wheel.py --program FILE --version 0.1.0 --glibc 2.30 --license FILE --output FOLDER

The bytes depend only on what goes in and on SOURCE_DATE_EPOCH.
"""

import argparse
import base64
import hashlib
import os
import pathlib
import platform
import re
import time
import zipfile

METADATA = """Metadata-Version: 2.1
Name: llm-batch
Version: {version}
Summary: Offline batch inference for language models: a file of prompts in, a file of completions out
License: Apache-2.0
Requires-Python: >=3.8
Description-Content-Type: text/plain

{description}"""

WHEEL = """Wheel-Version: 1.0
Generator: llm-batch
Root-Is-Purelib: false
Tag: py3-none-{platform}
"""


def package_files(arguments: argparse.Namespace) -> dict:
    """Path in the package → bytes."""
    source = pathlib.Path(__file__).parent / "llm_batch"
    files = {f"llm_batch/{name}": (source / name).read_bytes() for name in ("__init__.py", "__main__.py", "py.typed")}
    init = files["llm_batch/__init__.py"]
    files["llm_batch/__init__.py"], count = re.subn(rb'(?m)^__version__ = .*$', f'__version__ = "{arguments.version}"'.encode(), init)
    assert count == 1
    files["llm_batch/bin/llm-batch"] = pathlib.Path(arguments.program).read_bytes()
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("program", "version", "glibc", "license", "output"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    tag = f"manylinux_{arguments.glibc.replace('.', '_')}_{platform.machine()}"
    files = package_files(arguments)
    description = files["llm_batch/__init__.py"].decode().split('"""')[1]
    info = f"llm_batch-{arguments.version}.dist-info"
    files[f"{info}/METADATA"] = METADATA.format(version=arguments.version, description=description).encode()
    files[f"{info}/WHEEL"] = WHEEL.format(platform=tag).encode()
    files[f"{info}/LICENSE"] = pathlib.Path(arguments.license).read_bytes()
    files[f"{info}/entry_points.txt"] = b"[console_scripts]\nllm-batch = llm_batch.__main__:main\n"
    record = ""
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()

    date = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())), 315532800))[:6]
    path = pathlib.Path(arguments.output) / f"llm_batch-{arguments.version}-py3-none-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, date)
            entry.external_attr = (0o100755 if "/bin/" in name else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)
    print(path)


if __name__ == "__main__":
    main()
