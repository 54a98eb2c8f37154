"""Prints the rows of a CSV file, as Python's own reader sees them, as JSON."""

import csv
import json
import sys

with open(sys.argv[1], encoding="utf-8", newline="") as file:
    print(json.dumps(list(csv.DictReader(file, strict=True))))
