#!/usr/bin/env python3
"""Checks the bundle of evidence that this file lies in; needs Python 3.9 alone.

    python3 check.py [--key FILE]

With --key the checkpoint must be signed by that key: use the one that you got
from somewhere else than this bundle. Exit code 5: something is wrong."""

import sys

# A bundle may bring a `hashlib.py` or a `verify.pyc` of its own. So Python looks for no module in
# the bundle's directory, and of what is there only `verify.py` runs, from its source.
if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
    del sys.path[0]
import os

BUNDLE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.realpath(path) != os.path.realpath(BUNDLE)]
import hashlib
import json
import re

# The verifier has all that concerns keys, checkpoints, proofs and records.
verify = type(sys)("verify")
with open(os.path.join(BUNDLE, "verify.py"), "rb") as source:
    exec(compile(source.read(), "verify.py", "exec"), verify.__dict__)

NEEDED = {"records.jsonl", "last.tlog-proof", "key.vkey", "checkpoint"}
MEMBERS = NEEDED | {"README.txt", "check.py", "verify.py", "FORMAT.md"}
POLICY = re.compile("policies/([0-9a-f]{64})[.]toml")
MANIFEST_FIELDS = {"version", "created", "first", "last", "files"}
# What `verify.py` raises for a key, a checkpoint or a proof that is wrong.
INVALID = (verify.Damage, ValueError, IndexError)


class Wrong(Exception):
    """A fault of the bundle, in words."""


# The manifest and the files


def path_of(name):
    """Returns the path of a member."""
    return os.path.join(BUNDLE, *name.split("/"))


def read(name):
    """Returns the content of a member."""
    with open(path_of(name), "rb") as file:
        return file.read()


def sha256(data):
    """Returns the SHA-256 of bytes in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def parse_object(members):
    """Returns a JSON object as a dict, if it has no key twice."""
    values = dict(members)
    if len(values) < len(members):
        raise Wrong("manifest.json has a key twice")
    return values


def parse_integer(text):
    """Returns an integer; `-0` is none, as in FORMAT.md, section 2."""
    if text == "-0":
        raise ValueError("-0 is no integer")
    return int(text)


def refuse_constant(text):
    """Refuses `NaN` and `Infinity`, which Python reads and JSON does not have."""
    raise ValueError("%s is not JSON" % text)


def is_manifest(manifest):
    """Returns whether a JSON value has the fields of a manifest, with their types."""
    if not isinstance(manifest, dict) or set(manifest) != MANIFEST_FIELDS:
        return False
    for name in ("version", "first", "last"):
        if not verify.is_number(manifest[name]):
            return False
    if not isinstance(manifest["created"], str) or not isinstance(manifest["files"], dict):
        return False
    manifest["created"].encode()  # raises ValueError if there is half a surrogate pair
    return all(verify.is_hash(digest) for digest in manifest["files"].values())


def read_manifest():
    """Returns the manifest: the period, and the SHA-256 of every other member."""
    try:
        manifest = json.loads(
            read("manifest.json").decode(),
            object_pairs_hook=parse_object,
            parse_constant=refuse_constant,
            parse_int=parse_integer,
        )
        if not is_manifest(manifest):
            raise ValueError("the fields are others")
    except (OSError, ValueError, RecursionError):
        raise Wrong("manifest.json is no manifest") from None
    if manifest["version"] != 1:
        raise Wrong("manifest.json is of a later version")
    return manifest


def raise_error(error):
    """Ends a walk through directories with the error that it met."""
    raise error


def check_directory(listed, key_path):
    """Checks that every file is listed: somebody could take another one for evidence.

    The file with the key from outside, which is given, may be in the directory.
    """
    directories = {os.path.dirname(name) for name in listed} - {""}
    for parent, subdirectories, files in os.walk(BUNDLE, onerror=raise_error):
        for name in sorted(subdirectories + files):
            path = os.path.join(parent, name)
            member = os.path.relpath(path, BUNDLE).replace(os.sep, "/")
            known = directories if name in subdirectories else listed
            if member in known and not os.path.islink(path):
                continue
            if key_path and os.path.exists(path) and os.path.samefile(path, key_path):
                continue
            advice = "unpack the archive into a folder of its own"
            raise Wrong("%r is not in the manifest (%s)" % (member, advice))


def check_members(files):
    """Checks that the members are those of a bundle, and have the SHA-256 of the manifest."""
    for name, digest in files.items():
        if name not in MEMBERS and not POLICY.fullmatch(name):
            raise Wrong("%r is no member that a bundle has" % name)
        if not os.path.isfile(path_of(name)):
            raise Wrong("%r is missing" % name)
        if sha256(read(name)) != digest:
            raise Wrong("%r was changed" % name)


# The evidence


def check_proof(key_text):
    """Checks the proof of the last record, its checkpoint and its keys; returns what it proves."""
    proof = read("last.tlog-proof")
    try:
        keys = verify.parse_keys(key_text.decode(errors="replace"))
        proven = verify.verify_proof(proof, keys)
        note = proof.split(b"\n\n", 1)[1]
        signed = verify.read_checkpoint(note, keys)
    except INVALID:
        raise Wrong("last.tlog-proof is not valid under this key") from None
    try:
        own_keys = verify.parse_keys(read("key.vkey").decode(errors="replace"))
        signed_by_own_key = verify.read_checkpoint(note, own_keys)
    except INVALID:
        raise Wrong("key.vkey does not name the key that signed the proof") from None
    if signed_by_own_key != signed:
        raise Wrong("key.vkey does not name the key that signed the proof")
    try:
        beside = verify.read_checkpoint(read("checkpoint"), keys)
    except INVALID:
        raise Wrong("checkpoint is not one that this key signed") from None
    if beside != signed:
        raise Wrong("checkpoint is not the proof's")
    return proven


def check_records(manifest, proven):
    """Checks that the records follow one another up to the proven one, in the manifest's period.

    Each has the leaf hash of the one before, so the proof of the last one proves all of them.
    Returns the `policySha256` of all records.
    """
    lines = read("records.jsonl").split(b"\n")
    if lines.pop() != b"" or not lines:
        raise Wrong("records.jsonl does not end with a line")
    if lines[-1] != proven["line"].encode():
        raise Wrong("the last record is not the one that is proven")
    first_seq = proven["seq"] - len(lines) + 1
    if first_seq != manifest["first"] or proven["seq"] != manifest["last"]:
        raise Wrong("the manifest's period")
    policies = set()
    previous_leaf = None
    for seq, line in enumerate(lines, first_seq):
        if len(line) > verify.MAX_LINE:
            raise Wrong("record %d: long-line" % seq)
        try:
            record = verify.parse_record(line)
        except verify.Damage as damage:
            raise Wrong("record %d: %s" % (seq, damage.kind)) from None
        if record["seq"] != seq:
            raise Wrong("record %d is missing" % seq)
        if previous_leaf is not None and record["prev"] != previous_leaf:
            raise Wrong("record %d does not follow the one before" % seq)
        previous_leaf = verify.leaf_hash(line).hex()
        policies.add(record.get("policySha256"))
    return policies


def check_policies(files):
    """Checks the texts of policies; returns the SHA-256 of those that are there."""
    stored = set()
    for name in files:
        match = POLICY.fullmatch(name)
        if match is None:
            continue
        if sha256(read(name)) != match[1]:
            raise Wrong("%r is not the policy of its name" % name)
        stored.add(match[1])
    return stored


def check_bundle(key_path):
    """Checks the bundle with the key of a file, or with its own; prints what it proves."""
    try:
        key_text = verify.read_file(key_path) if key_path is not None else None
    except OSError as error:
        sys.exit("check.py: %s" % error)
    manifest = read_manifest()
    files = manifest["files"]
    for name in sorted(NEEDED - set(files)):
        raise Wrong("%r is not in the manifest" % name)
    check_directory({"manifest.json", *files}, key_path)
    check_members(files)
    if key_text is None:
        key_text = read("key.vkey")
    proven = check_proof(key_text)
    policies = check_records(manifest, proven)
    stored_policies = check_policies(files)
    for missing in sorted(filter(verify.is_hash, policies - stored_policies)):
        print("note: the text of policy %s is not here" % missing)
    period = (manifest["first"], manifest["last"], proven["size"])
    print("valid: records %d to %d of a log of %d" % period)
    if key_path is None:
        print("note: compare key.vkey with a copy from elsewhere, or give one with --key")


def main(arguments):
    """Runs the program; returns its exit code."""
    try:
        if not arguments:
            check_bundle(None)
        elif len(arguments) == 2 and arguments[0] == "--key":
            check_bundle(arguments[1])
        else:
            raise Wrong(__doc__)
    except Wrong as wrong:
        print("wrong: %s" % wrong)
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
