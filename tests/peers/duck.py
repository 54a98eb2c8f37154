"""Asks DuckDB about a Parquet file, which the query calls `log`; prints the
rows as JSON."""

import json
import sys

import duckdb

log = duckdb.read_parquet(sys.argv[1])
print(json.dumps(duckdb.sql(sys.argv[2]).fetchall()))
