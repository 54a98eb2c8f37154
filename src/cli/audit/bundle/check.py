#!/usr/bin/env python3
"""Checks the bundle of evidence that this file lies in; needs Python 3.9 alone.

    python3 check.py [--key FILE]

With --key the checkpoint must be signed by that key: use the one that you got
from somewhere else than this bundle. Exit code 5: something is wrong."""

import hashlib
import json
import os
import sys

import verify

HERE = os.path.dirname(os.path.abspath(__file__))


def read(name):
    with open(os.path.join(HERE, *name.split("/")), "rb") as file:
        return file.read()


def need(holds, words):
    if not holds:
        print("wrong: " + words)
        sys.exit(5)


def main(options):
    need(options[:1] in ([], ["--key"]) and len(options) in (0, 2), __doc__)
    manifest = json.loads(read("manifest.json"))
    for name, digest in manifest["files"].items():
        need(".." not in name.split("/") and not name.startswith("/"), "the name %r" % name)
        need(os.path.isfile(os.path.join(HERE, *name.split("/"))), "%r is missing" % name)
        need(hashlib.sha256(read(name)).hexdigest() == digest, "%r was changed" % name)
    key = open(options[1], "rb").read() if options else read("key.vkey")
    try:
        proven = verify.proof(read("last.tlog-proof"), verify.read_keys(key.decode()), None)
    except (verify.Damage, ValueError, IndexError, AttributeError, KeyError):
        need(False, "last.tlog-proof does not hold under this key")
    lines = read("records.jsonl").split(b"\n")
    need(lines.pop() == b"" and lines, "records.jsonl does not end with a line")
    need(lines[-1] == proven["line"].encode(), "the last record is not the one that is proven")
    policies, seq = set(), proven["seq"] - len(lines) + 1
    need(seq == manifest["first"] and proven["seq"] == manifest["last"], "the manifest's period")
    before = None
    for line in lines:
        try:
            record = verify.parse(line)
        except verify.Damage as damage:
            need(False, "record %d: %s" % (seq, damage.args[0]))
        need(record["seq"] == seq, "record %d is missing" % seq)
        need(before in (None, record["prev"]), "record %d does not follow the one before" % seq)
        before = hashlib.sha256(b"\0" + line).hexdigest()
        policies.add(record.get("policySha256"))
        seq += 1
    for name in (n for n in manifest["files"] if n.startswith("policies/")):
        digest = hashlib.sha256(read(name)).hexdigest()
        need(name == "policies/%s.toml" % digest, "%r is not the policy of its name" % name)
    kept = {name[9:-5] for name in manifest["files"] if name.startswith("policies/")}
    for missing in sorted(policies - kept - {None}):
        print("note: the text of policy %s is not here" % missing)
    print("holds: records %d to %d of a log of %d" % (manifest["first"], manifest["last"], proven["size"]))
    if not options:
        print("note: compare key.vkey with a copy from elsewhere, or give one with --key")


if __name__ == "__main__":
    main(sys.argv[1:])
