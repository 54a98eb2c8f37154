#!/usr/bin/env python3
"""Checks the bundle of evidence that this file lies in; needs Python 3.9 alone.

    python3 check.py [--key FILE]

With --key the checkpoint must be signed by that key: use the one that you got
from somewhere else than this bundle. Exit code 5: something is wrong."""

import sys

# Of what lies here only verify.py runs: a bundle may bring a `hashlib.py`, or a
# `verify.pyc` of its own.
if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
    del sys.path[0]
import os

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [place for place in sys.path if os.path.realpath(place) != os.path.realpath(HERE)]
import hashlib
import json
import re

verify = type(sys)("verify")
with open(os.path.join(HERE, "verify.py"), "rb") as file:
    exec(compile(file.read(), "verify.py", "exec"), verify.__dict__)

NEEDED = {"records.jsonl", "last.tlog-proof", "key.vkey", "checkpoint"}
MEMBERS = NEEDED | {"README.txt", "check.py", "verify.py", "FORMAT.md"}


def read(name):
    with open(os.path.join(HERE, *name.split("/")), "rb") as file:
        return file.read()


def need(holds, words):
    if not holds:
        print("wrong: " + words)
        sys.exit(5)


def object_of(pairs):
    need(len(dict(pairs)) == len(pairs), "manifest.json has a key twice")
    return dict(pairs)


def refuse(_):
    raise ValueError


def read_manifest():
    try:
        manifest = json.loads(read("manifest.json").decode(), object_pairs_hook=object_of, parse_constant=refuse,
                              parse_int=lambda text: refuse(text) if text == "-0" else int(text))
        need(isinstance(manifest, dict) and set(manifest) == {"version", "created", "first", "last", "files"}
             and all(verify.NUMBER(manifest[name]) for name in ("version", "first", "last"))
             and isinstance(manifest["created"], str) and manifest["created"].encode() is not None
             and isinstance(manifest["files"], dict) and all(map(verify.HASH, manifest["files"].values())),
             "manifest.json is no manifest")
    except (OSError, ValueError, RecursionError):
        need(False, "manifest.json is no manifest")
    need(manifest["version"] == 1, "manifest.json is of a later version")
    return manifest


def fail(error):
    raise error


def look_around(listed, ignored):
    """Nothing lies here that is not listed: somebody could take it for evidence."""
    folders = {os.path.dirname(name) for name in listed} - {""}
    for place, inner, names in os.walk(HERE, onerror=fail):
        for name in sorted(inner + names):
            path = os.path.join(place, name)
            at = os.path.relpath(path, HERE).replace(os.sep, "/")
            known = at in folders if name in inner else at in listed
            known = known and not os.path.islink(path)
            need(known or (os.path.exists(path) and ignored and os.path.samefile(path, ignored)),
                 "%r is not in the manifest (unpack the archive into a folder of its own)" % at)


def main(options):
    need(options[:1] in ([], ["--key"]) and len(options) in (0, 2), __doc__)
    try:
        key = open(options[1], "rb").read() if options else None
    except OSError as error:
        sys.exit("check.py: %s" % error)
    manifest = read_manifest()
    for name in sorted(NEEDED - set(manifest["files"])):
        need(False, "%r is not in the manifest" % name)
    look_around({"manifest.json", *manifest["files"]}, options[1] if options else None)
    for name, digest in manifest["files"].items():
        policy = re.fullmatch("policies/[0-9a-f]{64}[.]toml", name)
        need(policy or name in MEMBERS, "%r is no member that a bundle has" % name)
        need(os.path.isfile(os.path.join(HERE, *name.split("/"))), "%r is missing" % name)
        need(hashlib.sha256(read(name)).hexdigest() == digest, "%r was changed" % name)
    key = read("key.vkey") if key is None else key
    wrong = (verify.Damage, ValueError, IndexError, AttributeError, KeyError)
    try:
        keys = verify.read_keys(key.decode())
        proven = verify.proof(read("last.tlog-proof"), keys, None)
        signed = verify.checkpoint(read("last.tlog-proof").split(b"\n\n", 1)[1], keys)
    except wrong:
        need(False, "last.tlog-proof does not hold under this key")
    try:
        own = verify.read_keys(read("key.vkey").decode())
        need(verify.checkpoint(read("last.tlog-proof").split(b"\n\n", 1)[1], own) == signed,
             "key.vkey does not name the key that signed the proof")
    except wrong:
        need(False, "key.vkey does not name the key that signed the proof")
    try:
        need(verify.checkpoint(read("checkpoint"), keys) == signed, "checkpoint is not the proof's")
    except wrong:
        need(False, "checkpoint is not one that this key signed")
    lines = read("records.jsonl").split(b"\n")
    need(lines.pop() == b"" and lines, "records.jsonl does not end with a line")
    need(lines[-1] == proven["line"].encode(), "the last record is not the one that is proven")
    policies, seq = set(), proven["seq"] - len(lines) + 1
    need(seq == manifest["first"] and proven["seq"] == manifest["last"], "the manifest's period")
    before = None
    for line in lines:
        try:
            verify.need(len(line) <= 1 << 20, "long-line")
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
    for missing in sorted(filter(verify.HASH, policies - kept)):
        print("note: the text of policy %s is not here" % missing)
    print("holds: records %d to %d of a log of %d" % (manifest["first"], manifest["last"], proven["size"]))
    if not options:
        print("note: compare key.vkey with a copy from elsewhere, or give one with --key")


if __name__ == "__main__":
    main(sys.argv[1:])
