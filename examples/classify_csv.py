#!/usr/bin/env python3
"""Adds a column "sentiment" to a table of reviews. The answers come back in the order of the rows.

    examples/classify_csv.py MODEL_DIR reviews.csv > classified.csv

Needs the Python package (make package; pip install build-package/packages/*.whl), or, in the source tree,
PYTHONPATH=tools/package LLM_BATCH=build/llm-batch.
"""

import csv
import sys

import llm_batch

model, table = sys.argv[1:]
with open(table, newline="", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))

questions = (
    {"messages": [{"role": "user", "content": f"Is this review positive or negative? {row['review']}"}]} for row in rows
)
out = csv.DictWriter(sys.stdout, fieldnames=[*rows[0], "sentiment"], lineterminator="\n")
out.writeheader()
for answer, row in zip(llm_batch.run(model, questions, order="input", max_tokens=8), rows):
    out.writerow({**row, "sentiment": answer.get("text", "").strip() or "?"})
