# SPDX-License-Identifier: Apache-2.0
"""Rows with an image each on one GPU: one job, beside one ``LLM.chat`` with all rows.

Both have the same JPEGs on the same disk (`image_workload.py`), referred to by their paths. ``LLM.chat`` gets
them as ``file://`` URLs, and opens and decodes each itself; the job reads rows from Parquet, and loads their
images in its own tasks. Both engines are made once, share the GPU and work in turns; each pair has images of
its own. Seconds of the job are those from when its engine was ready for rows until the last answer, so the
first rows' reading and the first image's loading count, too.

Prints a JSON line a run, with the share of these seconds in which the job's engine waited for images, and
`ratios` at the end: the median over the pairs of the seconds of ``LLM.chat`` by those of the job.

usage: images.py TOKENIZER_FOLDER OUT [--images N] [--pairs N] [--edge PIXELS] [--engine ARGS_JSON] [--tiny]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from gpu_rates import GpuRates
from image_workload import chats, write_rows, write_vision_model
from two_gpus import HERE, environment, result, start_ray

KEPT = 600
"""Seconds for which the job's engine waits for the next job."""
SHARE = 0.42
"""Of the GPU's memory, for each of two engines."""
SAMPLING = {"temperature": 0, "max_tokens": 64, "ignore_eos": True}
WARM_UP = 64
"""Rows before the first pair."""


def main() -> None:
    if sys.argv[1] == "--llm":
        serve(sys.argv[2], json.loads(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(prog="images.py", description=__doc__)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--edge", type=int, default=728, help="pixels of the longer edge, for the model")
    parser.add_argument("--engine", type=json.loads, default={})
    parser.add_argument("--tiny", action="store_true", help="a tiny model, for a machine without a GPU")
    given = parser.parse_args()
    model = given.out / "model"
    write_vision_model(given.tokenizer, model, given.edge, given.tiny)
    few = write_rows(model, given.out / "few", min(WARM_UP, given.images), 0)
    many = [write_rows(model, given.out / f"rows-{n}", given.images, n) for n in range(1, given.pairs + 1)]
    args = {
        "load_format": "dummy",
        "gpu_memory_utilization": SHARE,
        "max_model_len": 4096,
        "limit_mm_per_prompt": {"image": 1},
        **given.engine,
    }
    found = [one / other for one, other in pairs(model, given.out, few, many, args)]
    each = [round(one, 3) for one in found]
    name = f"LLM.chat to job, {given.images} images"
    print("RESULT", json.dumps({"each": each, "ratios": {name: statistics.median(each)}}), flush=True)


def pairs(
    model: Path, out: Path, few: Path, many: list[Path], args: dict[str, Any]
) -> Iterator[tuple[float, float]]:
    """Seconds of ``LLM.chat`` and of the job, for each file of rows."""
    start_ray(gpus=1)
    command = [sys.executable, str(HERE / "images.py"), "--llm", str(model)]
    command.append(json.dumps({**args, "allowed_local_media_path": str(out)}))
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment("0"), stdin=pipe, stdout=pipe, text=True) as llm:
        assert llm.stdin is not None
        assert llm.stdout is not None
        _until("READY", llm.stdout)
        for rows in [few, *many]:
            with GpuRates("LLM.chat"):
                print(rows, file=llm.stdin, flush=True)
                ceiling = json.loads(_until("RESULT ", llm.stdout).removeprefix("RESULT "))
            with GpuRates("job"):
                job = ran(model, out, rows, args)
            print("RESULT", json.dumps({"rows": rows.parent.name, **ceiling}), flush=True)
            print("RESULT", json.dumps(job), flush=True)
            assert ceiling["input_tokens"] == job["input_tokens"], "other prompt tokens than LLM.chat"
            assert ceiling["output_tokens"] == job["output_tokens"], "other output tokens than LLM.chat"
            if rows is not few:
                yield ceiling["seconds"], job["seconds"]
        llm.stdin.close()
        llm.stdout.read()


def ran(model: Path, out: Path, rows: Path, args: dict[str, Any]) -> dict[str, Any]:
    """Run a job over a file of rows; say what it took, and how many answers are those of ``LLM.chat``."""
    fields = {
        "model": str(model),
        "messages_column": None,
        "images": "image",
        "prompt": "{row.question}",
        "sampling": SAMPLING,
        "engine_args": args,
        "keep_warm": KEPT,
    }
    found = result(rows.parent, out, rows.name, 1, fields)
    (place,) = sorted(out.glob(f"{rows.name}-1-*"), key=lambda one: one.stat().st_mtime)[-1:]
    manifest = json.loads((place / "manifest.json").read_text())
    phases = manifest["timing"]["phases"]
    seconds = round(found["seconds"] + phases["rows"], 2)
    waits = found["stages"]["wait_for_images"]
    return {
        **found,
        "seconds": seconds,
        "first_request_seconds": phases["rows"],
        "wait_for_images": waits,
        "share_of_wait": round(waits / seconds, 3),
        "load_images_per_row": round(found["stages"]["load_images"] / found["rows"], 4),
        "equal_answers": equal_answers(manifest["uri"], rows),
    }


def equal_answers(dataset: str, rows: Path) -> int:
    """How many answers of a job are those that ``LLM.chat`` gave."""
    made = pq.read_table(dataset, columns=["id", "response"])
    theirs = json.loads((rows.parent / "answers.json").read_text())
    return sum(theirs[number] == text for number, text in zip(*made.to_pydict().values(), strict=True))


def serve(model: str, args: dict[str, Any]) -> None:
    """Ask about the rows of each file whose name comes in, in one call."""
    from vllm import LLM, SamplingParams

    llm = LLM(model, **args)
    print("READY", flush=True)
    for line in sys.stdin:
        file = Path(line.strip())
        rows = pq.read_table(file).to_pylist()
        asked = chats(rows)
        began = time.time()
        outputs = llm.chat(asked, SamplingParams(**SAMPLING), use_tqdm=False)
        seconds = round(time.time() - began, 2)
        texts = [one.outputs[0].text for one in outputs]
        (file.parent / "answers.json").write_text(json.dumps(texts))
        found = {
            "system": "LLM.chat",
            "answers": len(rows),
            "input_tokens": sum(len(one.prompt_token_ids) for one in outputs),
            "output_tokens": sum(len(one.outputs[0].token_ids) for one in outputs),
            "seconds": seconds,
        }
        print("RESULT", json.dumps(found), flush=True)


def _until(begins: str, lines: Iterator[str]) -> str:
    for line in lines:
        if line.startswith(begins):
            return line.strip()
    raise SystemExit("LLM.chat failed; see above")


if __name__ == "__main__":
    main()
