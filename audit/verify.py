#!/usr/bin/env python3
"""Verifies a Portcullis audit log, or a proof of one, without Portcullis.

This is the reference implementation of a verifier. It is written to be read from top to bottom with
FORMAT.md beside it ("section N" is one of that document), and needs Python 3.9 and nothing else.
It stops at the first damage.

1. Hashes and the Merkle tree (RFC 6962)
2. Ed25519 signatures (RFC 8032)
3. Public keys and checkpoints (C2SP signed-note, tlog-checkpoint, tlog-cosignature)
4. Records
5. Proofs (RFC 6962, C2SP tlog-proof)
6. The log's directory, and the walk through the log
7. The command line
"""

import base64
import hashlib
import json
import math
import os
import re
import sys
from typing import NamedTuple

USAGE = (
    "Verifies a Portcullis audit log, or a proof, as FORMAT.md describes them; needs Python 3.9"
    " alone. Exit code 5: damage; 2: usage; 1: cannot be read.\n"
    "verify.py log DIRECTORY [--key FILE]... [--head SEQ:HASH]...\n"
    "verify.py proof FILE --key FILE... [--old CHECKPOINT]"
)

MAX_NUMBER = 2**64 - 1
MAX_LINE = 2**20  # bytes of a record without its newline
MAX_DEPTH = 127  # nested objects and arrays of a record
SEGMENT_RECORDS = 2**16  # records of a full segment
SEGMENT_LEVEL = 16  # a full segment is a complete subtree of 2^16 leaves
MAX_SEGMENT = SEGMENT_RECORDS * (MAX_LINE + 1)  # bytes of a segment
MAX_SEGMENT_NUMBER = 2**48 - 1
MAX_NOTE = 2**16  # bytes of a checkpoint, and of `key.vkey`
MAX_SIGNATURES = 100  # signature lines of a checkpoint
MAX_PROOF = 2 * 2**20  # bytes of a proof
MAX_READ = 65 * 2**20  # bytes that are read of a file that is no segment

DECIMAL = re.compile("0|[1-9][0-9]{0,19}")  # without leading zeros
HEXADECIMAL_HASH = re.compile("[0-9a-f]{64}")


class Damage(Exception):
    """A difference from what FORMAT.md requires.

    `kind` is a name of the table in section 8, or `no-proof`. The place is a file of the log, the
    sequence number that belongs to it and the line in the file. It is unknown (`file` is None)
    where a key, a record or a proof is examined by itself.
    """

    def __init__(self, kind, file=None, seq=None, line=None):
        super().__init__(kind, file, seq, line)
        self.kind = kind
        self.file = file
        self.seq = seq
        self.line = line

    def report(self):
        """Returns the damage as it is printed."""
        if self.file is None:
            return {"kind": self.kind}
        return {"kind": self.kind, "segment": self.file, "seq": self.seq, "line": self.line}


# 1. Hashes and the Merkle tree


def sha256(data):
    """Returns the SHA-256 of bytes."""
    return hashlib.sha256(data).digest()


def leaf_hash(line):
    """Returns the leaf hash of a record, its line without the newline (section 3)."""
    return sha256(b"\x00" + line)


def node_hash(left, right):
    """Returns the hash of an inner node of the tree (section 9; RFC 6962, section 2.1)."""
    return sha256(b"\x01" + left + right)


def split_size(size):
    """Returns where a tree of more than one leaf splits: at the largest power of two below it."""
    return 1 << ((size - 1).bit_length() - 1)


def root_of(subtrees):
    """Returns the root of the tree that consists of complete subtrees, the largest first.

    Each subtree is the pair of its root and its level: it has 2^level leaves.
    """
    if not subtrees:
        return sha256(b"")
    root, _level = subtrees[-1]
    for left, _level in reversed(subtrees[:-1]):
        root = node_hash(left, root)
    return root


def add_subtree(subtrees, root, level):
    """Adds a complete subtree at the right, and joins those that now have equal size.

    A leaf is a subtree of level 0.
    """
    while subtrees and subtrees[-1][1] == level:
        left, _level = subtrees.pop()
        root = node_hash(left, root)
        level += 1
    subtrees.append((root, level))


# 2. Ed25519 signatures
#
# The names are those of RFC 8032, section 5.1. A point is (X, Y, Z, T) in extended coordinates:
# x = X/Z, y = Y/Z and x * y = T/Z.

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
SQUARE_ROOT_OF_MINUS_ONE = pow(2, (P - 1) // 4, P)
NEUTRAL_POINT = (0, 1, 1, 0)


def add_points(p, q):
    """Returns the sum of two points (RFC 8032, section 5.1.4)."""
    a = (p[1] - p[0]) * (q[1] - q[0])
    b = (p[1] + p[0]) * (q[1] + q[0])
    c = 2 * p[3] * q[3] * D
    d = 2 * p[2] * q[2]
    e = b - a
    f = d - c
    g = d + c
    h = b + a
    return (e * f % P, g * h % P, f * g % P, e * h % P)


def multiply_point(scalar, point):
    """Returns `scalar` times a point."""
    product = NEUTRAL_POINT
    while scalar > 0:
        if scalar % 2 == 1:
            product = add_points(product, point)
        point = add_points(point, point)
        scalar //= 2
    return product


def are_equal_points(p, q):
    """Returns whether two points are the same: x = X/Z and y = Y/Z are equal."""
    return (p[0] * q[2] - q[0] * p[2]) % P == 0 and (p[1] * q[2] - q[1] * p[2]) % P == 0


def decode_point(data):
    """Returns the point that 32 bytes encode (RFC 8032, section 5.1.3)."""
    number = int.from_bytes(data, "little")
    sign = number >> 255
    y = number % 2**255
    if y >= P:
        raise Damage("bad-checkpoint")
    x_squared = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(x_squared, (P + 3) // 8, P)
    if x * x % P != x_squared:
        x = x * SQUARE_ROOT_OF_MINUS_ONE % P
    if x * x % P != x_squared:
        raise Damage("bad-checkpoint")
    if x == 0 and sign == 1:
        raise Damage("bad-checkpoint")
    if x % 2 != sign:
        x = P - x
    return (x, y, 1, x * y % P)


def has_small_order(point):
    """Returns whether 8 times a point is the neutral one.

    One signature under such a key fits any text (section 9).
    """
    x, _y, _z, _t = multiply_point(8, point)
    return x == 0


BASE_POINT = decode_point((4 * pow(5, -1, P) % P).to_bytes(32, "little"))


def check_signature(public_key, message, signature):
    """Checks an Ed25519 signature (RFC 8032, section 5.1.7)."""
    if len(signature) != 64:
        raise Damage("bad-checkpoint")
    encoded_r = signature[:32]
    s = int.from_bytes(signature[32:], "little")
    if s >= L:
        raise Damage("bad-checkpoint")
    r = decode_point(encoded_r)
    a = decode_point(public_key)
    if has_small_order(r) or has_small_order(a):
        raise Damage("bad-checkpoint")
    digest = hashlib.sha512(encoded_r + public_key + message).digest()
    k = int.from_bytes(digest, "little") % L
    if not are_equal_points(multiply_point(s, BASE_POINT), add_points(r, multiply_point(k, a))):
        raise Damage("bad-checkpoint")


# 3. Public keys and checkpoints
#
# A text that has not even the form of a key or a checkpoint raises ValueError in place of Damage.

LOG_KEY = 1  # algorithm byte of a log's own key
WITNESS_KEY = 4  # algorithm byte of a witness
KEY_NAME = re.compile(r"[^\s+\x00-\x1f\x7f-\x9f]+")  # no blanks, control characters or `+`
CONTROL_CHARACTERS = re.compile(rb"[\x00-\x09\x0b-\x1f]")  # those below U+0020 but the newline
EM_DASH = "\u2014"


class PublicKey(NamedTuple):
    """A public key `NAME+HASH+KEY` (section 9)."""

    name: str
    key_hash: bytes  # 4 bytes
    algorithm: int  # LOG_KEY or WITNESS_KEY
    key: bytes  # 32 bytes
    line: str  # as it was read


class Signature(NamedTuple):
    """A signature line of a checkpoint (section 9)."""

    name: str
    key_hash: bytes  # 4 bytes
    data: bytes  # of a witness: 8 bytes of time, then the signature


class Checkpoint(NamedTuple):
    """A tree head that a key of the log signed (section 9)."""

    size: int
    root: bytes


def decode_base64(text):
    """Returns the bytes of a base64 text, which must be the text that encodes them (RFC 4648)."""
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data).decode() != text:
        raise Damage("bad-checkpoint")
    return data


def parse_key(line):
    """Returns the public key of a line (section 9)."""
    parts = line.split("+", 2)
    if len(parts) != 3:
        raise ValueError("%r is no public key" % line)
    name, hash_digits, encoded = parts
    data = decode_base64(encoded)
    key_hash = bytes.fromhex(hash_digits)
    if not data:
        raise ValueError("%r is no public key" % line)
    algorithm = data[0]
    key = data[1:]
    if algorithm not in (LOG_KEY, WITNESS_KEY) or len(key) != 32:
        raise Damage("bad-checkpoint")
    if sha256(name.encode() + b"\n" + data)[:4].hex() != hash_digits:
        raise Damage("bad-checkpoint")
    if not KEY_NAME.fullmatch(name):
        raise Damage("bad-checkpoint")
    decode_point(key)
    return PublicKey(name, key_hash, algorithm, key, line)


def parse_keys(text):
    """Returns the public keys of a file like `key.vkey`, by name and key hash (section 9).

    They are in the order of the file: the first one is the key in use.
    """
    keys = {}
    for line in text.split("\n"):
        line = line.strip(" \t\r")
        if not line or line.startswith("#"):
            continue
        key = parse_key(line)
        known = keys.setdefault((key.name, key.key_hash), key)
        # No signature says by which of two keys of one name and key hash it is.
        if (known.algorithm, known.key) != (key.algorithm, key.key):
            raise Damage("bad-checkpoint")
    if not keys:
        raise Damage("bad-checkpoint")
    return keys


def parse_note(note):
    """Returns the text of a signed note and its signature lines (section 9)."""
    if len(note) > MAX_NOTE or CONTROL_CHARACTERS.search(note):
        raise Damage("bad-checkpoint")
    text, separator, signatures = note.decode().rpartition("\n\n")
    if not separator:
        raise ValueError("a checkpoint has an empty line before its signatures")
    text += "\n"
    if not signatures.endswith("\n") or signatures.count("\n") > MAX_SIGNATURES:
        raise Damage("bad-checkpoint")
    if "\n\n" in text:
        raise Damage("bad-checkpoint")
    return text, signatures[:-1].split("\n")


def parse_signature(line):
    """Returns the signature of a signature line (section 9)."""
    dash, name, encoded = line.split(" ")
    data = decode_base64(encoded)
    if dash != EM_DASH or not KEY_NAME.fullmatch(name) or len(data) <= 4:
        raise Damage("bad-checkpoint")
    return Signature(name, data[:4], data[4:])


def parse_tree_head(size, root):
    """Returns the checkpoint with this size in decimal and this root in base64 (section 9)."""
    if not DECIMAL.fullmatch(size) or int(size) > MAX_NUMBER:
        raise Damage("bad-checkpoint")
    root = decode_base64(root)
    if len(root) != 32:
        raise Damage("bad-checkpoint")
    return Checkpoint(int(size), root)


def check_note_signature(signature, key, text):
    """Checks the signature of a note's text by a key of the log or a witness (section 9)."""
    message = text.encode()
    if key.algorithm == LOG_KEY:
        check_signature(key.key, message, signature.data)
    else:
        time = int.from_bytes(signature.data[:8], "big")
        header = b"cosignature/v1\ntime %d\n" % time
        check_signature(key.key, header + message, signature.data[8:])


def read_checkpoint(note, keys):
    """Returns the checkpoint of a signed note, if one of the log's keys signed it (section 9).

    The name of that key is the origin. Signatures by unknown keys are ignored, but a wrong one by
    a known key makes the checkpoint bad.
    """
    text, signature_lines = parse_note(note)
    origin, size, root = text.split("\n")[:3]
    is_signed = False
    for line in signature_lines:
        signature = parse_signature(line)
        key = keys.get((signature.name, signature.key_hash))
        if key is None:
            continue
        check_note_signature(signature, key, text)
        if key.algorithm == LOG_KEY and key.name == origin:
            is_signed = True
    if not is_signed:
        raise Damage("bad-checkpoint")
    return parse_tree_head(size, root)


# 4. Records

# The fixed parts of `YYYY-MM-DDTHH:MM:SS.ffffffZ`; `is_time` checks the day.
TIME = re.compile(
    "([0-9]{4})-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    "T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9][.][0-9]{6}Z"
)
NONCE = re.compile("[0-9a-f]{32}")
JSON_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')  # between quotes, with escapes
DAYS_OF_MONTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class JsonObject(dict):
    """A JSON object; `members` has all its members, also those whose key is repeated."""

    def __init__(self, members):
        super().__init__(members)
        self.members = members


def is_text(value):
    """Returns whether a JSON value is a *text* (section 4)."""
    return isinstance(value, str)


def is_number(value):
    """Returns whether a JSON value is a *number* (section 4)."""
    # For Python `true` is an int, too; its type is bool.
    return type(value) is int and 0 <= value <= MAX_NUMBER


def is_hash(value):
    """Returns whether a JSON value is a *hash* (section 4)."""
    return isinstance(value, str) and HEXADECIMAL_HASH.fullmatch(value) is not None


def is_boolean(value):
    """Returns whether a JSON value is `true` or `false`."""
    return isinstance(value, bool)


def is_array(value):
    """Returns whether a JSON value is an array."""
    return isinstance(value, list)


def is_object(value):
    """Returns whether a JSON value is an object."""
    return isinstance(value, JsonObject)


def is_counts(value):
    """Returns whether a JSON value is an object of numbers, also those of repeated keys."""
    return is_object(value) and all(is_number(count) for _name, count in value.members)


# The table of section 4, in its order.
FIELD_TYPES = {
    "v": is_number,
    "seq": is_number,
    "kind": is_text,
    "t": is_text,
    "boot": is_text,
    "session": is_text,
    "agent": is_text,
    "user": is_text,
    "transport": is_text,
    "op": is_text,
    "path": is_text,
    "resolved": is_text,
    "to": is_text,
    "temp": is_text,
    "decision": is_text,
    "wouldDeny": is_boolean,
    "rule": is_text,
    "policy": is_text,
    "policySha256": is_text,
    "line": is_number,
    "reason": is_text,
    "bytes": is_number,
    "before": is_hash,
    "after": is_hash,
    "backup": is_text,
    "source": is_text,
    "findings": is_array,
    "counts": is_counts,
    "facts": is_object,
    "of": is_number,
    "result": is_text,
    "nonce": is_text,
    "prev": is_hash,
}
REQUIRED_FIELDS = {"v", "seq", "kind", "t", "nonce", "prev"}


def is_time(text):
    """Returns whether a text is a time as `t` has it, of a day that exists (section 4)."""
    match = TIME.fullmatch(text)
    if match is None:
        return False
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    if month == 2 and day == 29:
        return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return day <= DAYS_OF_MONTHS[month - 1]


def parse_fraction(text):
    """Returns a JSON number with fraction or exponent, which must be finite (section 2)."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is not finite")
    return value


def parse_integer(text):
    """Returns a JSON number without fraction and exponent, which must be finite (section 2)."""
    value = parse_fraction(text)
    if text == "-0":
        return value  # a double: it is no integer
    return int(text)


def refuse_constant(text):
    """Refuses `NaN` and `Infinity`, which Python reads and JSON does not have."""
    raise ValueError("%s is not JSON" % text)


def nesting_depth(text):
    """Returns how many objects and arrays of a JSON text are within one another, at most."""
    without_strings = JSON_STRING.sub("", text)
    depth = 0
    deepest = 0
    for character in without_strings:
        if character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def parse_object(line):
    """Returns the JSON object that a line is by section 2, or raises ValueError."""
    text = line.decode()
    if not text.startswith("{") or not text.endswith("}"):
        raise ValueError("the line is no JSON object, or there are blanks around it")
    parsed = json.loads(
        text,
        object_pairs_hook=JsonObject,
        parse_int=parse_integer,
        parse_float=parse_fraction,
        parse_constant=refuse_constant,
    )
    # Nearly every line has so few of them, nested or not, that their number is enough.
    if text.count("[") + text.count("{") > MAX_DEPTH and nesting_depth(text) > MAX_DEPTH:
        raise ValueError("the line has too many nested objects and arrays")
    if "\\" in text:
        # Python reads an escape of half a surrogate pair, but raises ValueError where it encodes
        # one as UTF-8. Lists in place of objects have the members of repeated keys, too.
        json.dumps(json.loads(text, object_pairs_hook=list), ensure_ascii=False).encode()
    return parsed


def check_fields(record):
    """Checks that a JSON object is a record by section 4, in the order of section 8."""
    if len(record) < len(record.members):
        raise Damage("duplicate-key")
    if is_number(record.get("v")) and record["v"] != 1:
        raise Damage("unsupported-version")
    for name, value in record.items():
        has_type = FIELD_TYPES.get(name)
        if has_type is not None and not has_type(value):
            raise Damage("malformed-record")
    if not REQUIRED_FIELDS <= record.keys():
        raise Damage("malformed-record")
    if not is_time(record["t"]) or not NONCE.fullmatch(record["nonce"]):
        raise Damage("malformed-record")
    if record["kind"] == "outcome" and "of" not in record:
        raise Damage("malformed-record")


def parse_record(line):
    """Returns the record that a line without its newline is (sections 2 and 4)."""
    try:
        record = parse_object(line)
    except (ValueError, RecursionError):
        raise Damage("malformed-record") from None
    check_fields(record)
    return record


# 5. Proofs
#
# `bad-checkpoint` means that the checkpoint is bad or the proof does not lead to it, `no-proof`
# that the text has not the form of a proof. ValueError and IndexError (of lines or hashes that are
# missing) mean `no-proof`, too.

PROOF_HEADER = "c2sp.org/tlog-proof@v1"


def root_from_inclusion(leaf, index, size, hashes):
    """Returns the root to which an inclusion proof leads (RFC 6962, section 2.1.1).

    `hashes` are nearest the leaf first, so the last one is the root of the part of the tree in
    which the leaf is not.
    """
    if size == 1:
        if hashes:
            raise Damage("bad-checkpoint")
        return leaf
    split = split_size(size)
    if index < split:
        left = root_from_inclusion(leaf, index, split, hashes[:-1])
        return node_hash(left, hashes[-1])
    right = root_from_inclusion(leaf, index - split, size - split, hashes[:-1])
    return node_hash(hashes[-1], right)


def roots_from_consistency(old_size, size, hashes, old_root):
    """Returns the two roots to which a consistency proof leads (RFC 6962, section 2.1.2).

    They are the root of the first `old_size` leaves of a tree, and that of all its `size` leaves.
    If the tree has its leaves from the log's first one on, `old_root` is the older checkpoint's
    root, which the proof leaves out. In a part further to the right it is None, and the proof has
    the root of such leaves.
    """
    if old_size == size and old_root is not None:
        if hashes:
            raise Damage("bad-checkpoint")
        return old_root, old_root
    if old_size == size:
        if len(hashes) != 1:
            raise Damage("bad-checkpoint")
        return hashes[0], hashes[0]
    split = split_size(size)
    if old_size <= split:
        old, new = roots_from_consistency(old_size, split, hashes[:-1], old_root)
        return old, node_hash(new, hashes[-1])
    old, new = roots_from_consistency(old_size - split, size - split, hashes[:-1], None)
    return node_hash(hashes[-1], old), node_hash(hashes[-1], new)


def parse_hashes(lines):
    """Returns the hashes of a proof, a line each (section 9).

    All have 32 bytes: one of another length could contain a hash and be the input of another one,
    so that one root would have proofs of two different records.
    """
    hashes = [decode_base64(line) for line in lines]
    for one_hash in hashes:
        if len(one_hash) != 32:
            raise Damage("no-proof")
    return hashes


def check_consistency(lines, checkpoint, older):
    """Checks the consistency proof from an older checkpoint to the proof's (section 9)."""
    if lines[0] != "old %d" % older.size:
        raise Damage("bad-checkpoint")
    if not 0 < older.size <= checkpoint.size:
        raise Damage("bad-checkpoint")
    hashes = parse_hashes(lines[1:])
    roots = roots_from_consistency(older.size, checkpoint.size, hashes, older.root)
    if roots != (older.root, checkpoint.root):
        raise Damage("bad-checkpoint")
    return {"from": older.size, "size": checkpoint.size}


def check_inclusion(lines, checkpoint):
    """Checks the proof that a record is in the log of the checkpoint (section 9).

    The line `extra` is required here, because this verifier shows the record.
    """
    if lines[0] != PROOF_HEADER:
        raise Damage("bad-checkpoint")
    if not lines[1].startswith("extra "):
        raise Damage("bad-checkpoint")
    word, _blank, index_digits = lines[2].partition(" ")
    if word != "index" or not DECIMAL.fullmatch(index_digits):
        raise Damage("bad-checkpoint")
    line = decode_base64(lines[1][len("extra "):])
    index = int(index_digits)
    if len(line) > MAX_LINE or index >= checkpoint.size:
        raise Damage("bad-checkpoint")
    if parse_record(line)["seq"] != index:
        raise Damage("bad-checkpoint")
    hashes = parse_hashes(lines[3:])
    if root_from_inclusion(leaf_hash(line), index, checkpoint.size, hashes) != checkpoint.root:
        raise Damage("bad-checkpoint")
    return {"seq": index, "size": checkpoint.size, "line": line.decode()}


def verify_proof(proof, keys, old_note=None):
    """Verifies a proof under public keys; returns what is printed (section 9).

    With `old_note`, the note of an older checkpoint, it must be a consistency proof, without one
    an inclusion proof.
    """
    if len(proof) > MAX_PROOF:
        raise Damage("no-proof")
    head, separator, note = proof.partition(b"\n\n")
    if not separator:
        raise Damage("no-proof")
    checkpoint = read_checkpoint(note, keys)
    lines = head.decode().split("\n")
    is_consistency_proof = lines[0].startswith("old ")
    if is_consistency_proof != (old_note is not None):
        raise Damage("no-proof")
    if is_consistency_proof:
        return check_consistency(lines, checkpoint, read_checkpoint(old_note, keys))
    return check_inclusion(lines, checkpoint)


# 6. The log's directory, and the walk through the log


def shown_name(name):
    """Returns the name of a file as damages have it: what is not UTF-8 is U+FFFD (section 8)."""
    return os.fsencode(name).decode(errors="replace")


def segment_name(number):
    """Returns the name of a segment (section 1)."""
    return "seg-%06d.jsonl" % number


def parse_segment_name(name):
    """Returns the number of the segment that has this name, or None (section 1)."""
    match = re.fullmatch("seg-([0-9]{6,15})[.]jsonl", name)
    if match is None:
        return None
    number = int(match[1])
    if name != segment_name(number) or number > MAX_SEGMENT_NUMBER:
        return None
    return number


class LogDirectory:
    """The directory of a log (section 1).

    Nothing but regular files and directories is opened: to read another file might never end.
    """

    def __init__(self, path):
        self.path = path
        self.names = sorted(os.listdir(path), key=shown_name)

    def path_of(self, name):
        """Returns the path of a file in it."""
        return os.path.join(self.path, name)

    def is_regular(self, name):
        """Returns whether a name is that of a regular file, not of a link to one."""
        path = self.path_of(name)
        return os.path.isfile(path) and not os.path.islink(path)

    def is_directory(self, name):
        """Returns whether a name is that of a directory, not of a link to one."""
        path = self.path_of(name)
        return os.path.isdir(path) and not os.path.islink(path)

    def read(self, name, kind):
        """Returns the content of a file, or None if there is none.

        The damage of a file that is not a regular one has this kind.
        """
        if not os.path.lexists(self.path_of(name)):
            return None
        if not self.is_regular(name):
            raise Damage(kind, name)
        with open(self.path_of(name), "rb") as file:
            return file.read(MAX_READ)

    def is_log(self):
        """Returns whether anything in the directory is of a log."""
        known = ("checkpoint", "checkpoints", "key.vkey", "roots", "frontier", "quarantine")
        for name in self.names:
            if name.startswith("seg-") or name in known:
                return True
            if name == "lock" and self.is_regular(name):
                return True
        return False

    def is_compressed_segment(self, name):
        """Returns whether a name is that of a compressed segment."""
        if not name.endswith(".zst") or parse_segment_name(name[:-4]) is None:
            return False
        return self.is_regular(name)

    def is_expected(self, name):
        """Returns whether a file is not an `unexpected-file` (section 8)."""
        if name.startswith("seg-"):
            return parse_segment_name(name) is not None and self.is_regular(name)
        if name in ("lock", "frontier"):
            return self.is_regular(name)
        if name == "quarantine":
            return self.is_directory(name)
        return True

    def list_segments(self):
        """Returns the numbers of the plain segments in order; checks the names of all files."""
        segments = []
        for name in self.names:
            if self.is_compressed_segment(name):
                if name[:-4] not in self.names:
                    sys.exit("%s is compressed: unpack it first (zstd -d)" % name)
                continue
            if not self.is_expected(name):
                raise Damage("unexpected-file", shown_name(name))
            if name.startswith("seg-"):
                segments.append(parse_segment_name(name))
        return sorted(segments)

    def list_stored_checkpoints(self):
        """Returns the sizes of the stored checkpoints `checkpoints/SIZE`."""
        if not self.is_directory("checkpoints"):
            return set()
        names = os.listdir(self.path_of("checkpoints"))
        sizes = {int(name) for name in names if DECIMAL.fullmatch(name)}
        return {size for size in sizes if size <= MAX_NUMBER}


class LogVerifier:
    """The walk through a log: what is required of it, and what was found so far.

    Its methods are called in the order in which `verify` has them.
    """

    def __init__(self, directory, heads):
        self.directory = LogDirectory(directory)
        # Receipts from outside: for each sequence number a set of leaf hashes in hexadecimal
        # digits. Those of records that were read are removed.
        self.heads = dict(heads)

        # What the directory has besides the records.
        self.segments = []  # numbers of the segments in order
        self.has_given_keys = False  # keys were given from outside
        self.keys = {}  # public keys by name and key hash
        self.key_lines = []  # the lines of these keys
        self.stored_sizes = set()  # sizes of stored checkpoints
        self.newest_size = None  # size of the newest checkpoint, if there is one
        self.roots = []  # root of each full segment as `roots` has it; None if a line is no root

        # Where the walk is.
        self.seq = 0  # sequence number of the next record
        self.previous_leaf = bytes(32)  # leaf hash of the record before; None if it was pruned
        self.full_segments = []  # subtrees of the full segments, for `root_of`
        self.current_segment = []  # subtrees of the segment that is being read

        # What the records say.
        self.pruned_segments = 0  # segments that are missing before the first one
        self.first_prev = None  # `prev` of the first record
        self.is_pruning_recorded = False  # a record accounts for the missing segments
        self.open_intents = set()  # sequence numbers of intents without an outcome
        self.signing_boots = set()  # `boot` of the `start` records that name a key
        self.has_signer_stopped = False  # one of these gateways stopped in order
        self.signed_records = 0  # records that a valid checkpoint covers

    def verify(self, key_text):
        """Verifies the log with the text of keys from outside, or None; returns what is printed.

        The order is that in which section 8 defines the first damage of a log.
        """
        if not self.directory.is_log():
            path = self.directory.path
            sys.exit("there is no audit log at %r; did you mean STATE/audit?" % path)
        self.segments = self.directory.list_segments()
        own_keys = self.read_own_keys()
        self.stored_sizes = self.directory.list_stored_checkpoints()
        self.choose_keys(own_keys, key_text)
        self.check_checkpoints_directory()
        self.read_newest_checkpoint()
        self.read_roots()

        self.check_checkpoints()
        self.skip_pruned_segments()
        for expected_number, number in enumerate(self.segments, self.pruned_segments):
            if number != expected_number:
                name = segment_name(expected_number)
                raise Damage("missing-segment", name, expected_number * SEGMENT_RECORDS)
            self.verify_segment(number)

        self.check_pruning()
        self.check_missing_heads()
        self.check_missing_checkpoint()
        return self.result()

    # What the directory has besides the records.

    def read_own_keys(self):
        """Returns the public keys of `key.vkey`, or None if there is no such file (section 9)."""
        content = self.directory.read("key.vkey", "bad-checkpoint")
        if content is None:
            return None
        if len(content) > MAX_NOTE:
            raise Damage("bad-checkpoint", "key.vkey")
        try:
            return parse_keys(content.decode(errors="replace"))
        except (ValueError, Damage):
            raise Damage("bad-checkpoint", "key.vkey") from None

    def choose_keys(self, own_keys, key_text):
        """Decides on the keys: those from outside, else those of `key.vkey` (section 9)."""
        if key_text is not None:
            self.has_given_keys = True
            self.keys = parse_keys(key_text)
        elif own_keys is not None:
            self.keys = own_keys
        self.key_lines = [key.line for key in self.keys.values()]

        has_checkpoints = "checkpoint" in self.directory.names or self.stored_sizes
        if has_checkpoints and not self.keys:
            raise Damage("missing-key", "key.vkey")
        if self.has_given_keys and own_keys is not None:
            key_in_use = next(iter(own_keys.values()))
            if key_in_use.line not in self.key_lines:
                raise Damage("wrong-key", "key.vkey")

    def check_checkpoints_directory(self):
        """Checks that `checkpoints` is a directory, if it is there (section 1)."""
        name = "checkpoints"
        if name in self.directory.names and not self.directory.is_directory(name):
            raise Damage("bad-checkpoint", name)

    def read_newest_checkpoint(self):
        """Reads the newest checkpoint, so that its size is known (section 9)."""
        if "checkpoint" in self.directory.names:
            self.newest_size = self.load_checkpoint("checkpoint", None).size

    def load_checkpoint(self, name, last_record):
        """Returns a checkpoint of the directory, whose `last_record` is named in its damage."""
        try:
            return read_checkpoint(self.directory.read(name, "bad-checkpoint"), self.keys)
        except (ValueError, Damage):
            raise Damage("bad-checkpoint", name, last_record) from None

    def read_roots(self):
        """Reads `roots`, a line for each full segment from the first on (section 9)."""
        content = self.directory.read("roots", "wrong-root")
        if content is None:
            return
        for line in content.decode("latin-1").split("\n"):
            self.roots.append(bytes.fromhex(line) if is_hash(line) else None)
        # Lines at the end that are no roots do not count.
        while self.roots and self.roots[-1] is None:
            self.roots.pop()

    # The walk.

    def root(self):
        """Returns the root of all records so far."""
        return root_of(self.full_segments + self.current_segment)

    def check_checkpoints(self):
        """Checks the checkpoints of exactly the records so far, if there are any (section 8)."""
        if self.seq in self.stored_sizes:
            self.check_checkpoint("checkpoints/%d" % self.seq)
        if self.seq == self.newest_size:
            self.check_checkpoint("checkpoint")

    def check_checkpoint(self, name):
        """Checks that a checkpoint signs the records so far (section 9)."""
        last_record = self.seq - 1 if self.seq > 0 else None
        checkpoint = self.load_checkpoint(name, last_record)
        if checkpoint.size != self.seq:
            raise Damage("bad-checkpoint", name, last_record)
        if checkpoint.root != self.root():
            raise Damage("wrong-root", name, last_record)
        self.signed_records = self.seq

    def skip_pruned_segments(self):
        """Takes the roots of segments missing before the first one from `roots` (section 9).

        A record has to account for them: `check_pruning`.
        """
        first_segment = self.segments[0] if self.segments else 0
        pruned_roots = self.roots[:first_segment]
        if first_segment == 0 or len(pruned_roots) < first_segment or None in pruned_roots:
            return
        self.pruned_segments = first_segment
        self.seq = first_segment * SEGMENT_RECORDS
        self.previous_leaf = None
        for root in pruned_roots:
            add_subtree(self.full_segments, root, SEGMENT_LEVEL)
        self.check_checkpoints()

    def verify_segment(self, number):
        """Verifies the next segment (sections 1 and 8)."""
        name = segment_name(number)
        is_last = number == self.segments[-1]
        line_number = 0
        with open(self.directory.path_of(name), "rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_SEGMENT:
                raise Damage("bad-segment", name, self.seq)
            while True:
                line = file.readline(MAX_LINE + 1)
                if not line:
                    break
                line_number += 1
                self.verify_line(line, name, line_number, is_last)
        if not is_last and line_number < SEGMENT_RECORDS:
            raise Damage("short-segment", name, self.seq, line_number or None)

    def verify_line(self, line, name, line_number, is_last):
        """Verifies a line, with its newline, of the segment `name` (section 8)."""
        place = (name, self.seq, line_number)
        if line_number > SEGMENT_RECORDS:
            raise Damage("long-segment", *place)
        if not line.endswith(b"\n"):
            if len(line) > MAX_LINE:
                raise Damage("long-line", *place)
            if is_last:
                raise Damage("torn-tail", *place)
            raise Damage("unterminated-line", *place)
        line = line[:-1]
        try:
            record = parse_record(line)
        except Damage as damage:
            raise Damage(damage.kind, *place) from None
        leaf = leaf_hash(line)

        self.check_link(record, place)
        self.check_reference(record, place)
        self.check_receipts(leaf, place)
        self.check_named_key(record)
        self.track_pruning(record)
        self.track_signers(record)
        self.add_leaf(leaf)
        self.check_checkpoints()

    def check_link(self, record, place):
        """Checks `seq`, and `prev`, which links the record to the one before (section 3)."""
        if record["seq"] != self.seq:
            raise Damage("wrong-sequence", *place)
        if self.first_prev is None:
            self.first_prev = record["prev"]
        if self.previous_leaf is not None and record["prev"] != self.previous_leaf.hex():
            raise Damage("broken-link", *place)

    def check_reference(self, record, place):
        """Checks that `of` is an intent of which no earlier record has the outcome (section 5)."""
        if record["kind"] == "intent":
            self.open_intents.add(self.seq)
        elif record["kind"] in ("outcome", "recovered") and "of" in record:
            if record["of"] not in self.open_intents:
                raise Damage("wrong-reference", *place)
            self.open_intents.remove(record["of"])

    def check_receipts(self, leaf, place):
        """Checks that all receipts of the record have its leaf hash (section 9)."""
        receipts = self.heads.pop(self.seq, None)
        if receipts is not None and receipts != {leaf.hex()}:
            raise Damage("wrong-head", *place)

    def check_named_key(self, record):
        """Checks the key that a `start` record names (section 9)."""
        if record["kind"] != "start":
            return
        named_key = record.get("facts", {}).get("checkpointKey")
        if not is_text(named_key):
            return
        if not self.keys:
            raise Damage("missing-key", "key.vkey", self.seq)
        if named_key not in self.key_lines:
            raise Damage("wrong-key", "key.vkey", self.seq)

    def track_pruning(self, record):
        """Looks whether a record accounts for the segments that are missing (section 9)."""
        if record["kind"] not in ("pruned", "recovered"):
            return
        facts = record.get("facts", {})
        segments = facts.get("segments")
        if not is_number(segments):
            return
        if segments > self.pruned_segments:
            self.is_pruning_recorded = True
        if segments == self.pruned_segments and facts.get("head") == self.first_prev:
            self.is_pruning_recorded = True

    def track_signers(self, record):
        """Looks whether a gateway that signs stopped in order (section 8, `missing-checkpoint`)."""
        kind = record["kind"]
        facts = record.get("facts", {})
        if kind == "start" and is_text(facts.get("checkpointKey")):
            self.signing_boots.add(record.get("boot"))
        elif kind == "stop" and record.get("boot") in self.signing_boots:
            self.has_signer_stopped = True
        elif kind == "recovered" and facts.get("what") == "unsigned":
            # An operator knows that all checkpoints are gone.
            self.signing_boots = set()
            self.has_signer_stopped = False

    def add_leaf(self, leaf):
        """Adds the record's leaf to the tree, and compares a full segment with `roots`."""
        add_subtree(self.current_segment, leaf, 0)
        self.previous_leaf = leaf
        self.seq += 1
        if self.seq % SEGMENT_RECORDS != 0:
            return
        root = root_of(self.current_segment)
        number = self.seq // SEGMENT_RECORDS - 1
        if number < len(self.roots) and self.roots[number] != root:
            raise Damage("wrong-root", "roots", self.seq - 1)
        add_subtree(self.full_segments, root, SEGMENT_LEVEL)
        self.current_segment = []

    # The end of the log.

    def check_pruning(self):
        """Checks that a record accounts for the missing segments (section 9)."""
        if self.pruned_segments > 0 and not self.is_pruning_recorded:
            raise Damage("missing-segment", segment_name(0), 0)

    def check_missing_heads(self):
        """Checks the receipts that were not found, and checkpoints of more records (section 8)."""
        first_seq = self.pruned_segments * SEGMENT_RECORDS
        for seq in sorted(self.heads):
            # Of two receipts of one pruned record that differ, one is wrong.
            if seq < first_seq and len(self.heads[seq]) > 1:
                raise Damage("wrong-head", segment_name(seq // SEGMENT_RECORDS), seq)
        next_segment = segment_name(self.seq // SEGMENT_RECORDS)
        for seq in sorted(self.heads):
            if seq >= first_seq:
                raise Damage("missing-head", next_segment, seq)
        for size in sorted(self.stored_sizes):
            if size > self.seq:
                raise Damage("missing-head", next_segment, size - 1)
        if self.newest_size is not None and self.newest_size > self.seq:
            raise Damage("missing-head", next_segment, self.newest_size - 1)

    def check_missing_checkpoint(self):
        """Checks that a valid checkpoint was found, if there must be one (section 8)."""
        if self.signed_records > 0:
            return
        if self.has_signer_stopped or (self.has_given_keys and self.seq > 0):
            raise Damage("missing-checkpoint", "checkpoint")

    def result(self):
        """Returns what is printed of an intact log."""
        head = None
        if self.seq > 0:
            head = {"seq": self.seq - 1, "leaf": self.previous_leaf.hex()}
        result = {
            "records": self.seq - self.pruned_segments * SEGMENT_RECORDS,
            "signed": self.signed_records,
            "head": head,
        }
        if self.heads:
            # Receipts of pruned records, which could not be checked.
            result["prunedHeads"] = sorted(self.heads)
        return result


def verify_log(directory, key_text=None, heads=None):
    """Verifies a log; returns what is printed.

    `key_text` is the text of a file of public keys from outside. `heads` has the receipts from
    outside: for each sequence number a set of leaf hashes in hexadecimal digits.
    """
    return LogVerifier(directory, heads or {}).verify(key_text)


# 7. The command line


def usage(words):
    """Ends with a message about the command line."""
    print("verify.py: " + words, USAGE, sep="\n", file=sys.stderr)
    sys.exit(2)


def parse_options(words, known):
    """Returns the values of each known option: `--name VALUE` or `--name=VALUE`, repeatable.

    Whatever is not understood ends the program: it might be what should have been checked.
    """
    values = {name: [] for name in known}
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=")
        if not equals:
            value = next(remaining, "")
        if name not in values:
            usage("%r is no option here" % word)
        if not value or value.startswith("--"):
            usage("%s needs a value" % name)
        values[name].append(value)
    return values


def parse_heads(words):
    """Returns the receipts `SEQ:HASH`: a set of hashes for each sequence number."""
    heads = {}
    for word in words:
        match = re.fullmatch("([0-9]{1,20}):([0-9a-f]{64})", word)
        if match is None or int(match[1]) > MAX_NUMBER:
            usage("%r is no SEQ:HASH" % word)
        heads.setdefault(int(match[1]), set()).add(match[2])
    return heads


def read_file(path, limit=-1):
    """Returns the content of a file, or the first `limit` bytes of it."""
    with open(path, "rb") as file:
        return file.read(limit)


def read_key_files(paths):
    """Returns the text of files with public keys, or None if there are none."""
    texts = [read_file(path).decode(errors="replace") for path in paths]
    for text in texts:
        try:
            parse_keys(text)  # each file must have a key
        except Damage:
            raise ValueError("a file given with --key has no key, or a wrong one") from None
    return "\n".join(texts) if texts else None


def run_log(directory, words):
    """Runs `verify.py log DIRECTORY …`; returns what is printed."""
    options = parse_options(words, ["--key", "--head"])
    heads = parse_heads(options["--head"])
    return verify_log(directory, read_key_files(options["--key"]), heads)


def run_proof(path, words):
    """Runs `verify.py proof FILE …`; returns what is printed."""
    options = parse_options(words, ["--key", "--old"])
    if len(options["--old"]) > 1:
        usage("--old is given once")
    old_note = read_file(options["--old"][0]) if options["--old"] else None
    proof = read_file(path, MAX_PROOF + 1)
    if old_note is None and proof.startswith(b"old "):
        usage("a proof of growth needs the older checkpoint (--old)")
    if not options["--key"]:
        raise Damage("no-proof")  # without a key nothing is proven
    key_text = read_key_files(options["--key"])
    try:
        return verify_proof(proof, parse_keys(key_text), old_note)
    except (ValueError, IndexError):
        raise Damage("no-proof") from None


def main(arguments):
    """Runs the program; returns its exit code."""
    if len(arguments) < 2 or arguments[0] not in ("log", "proof"):
        usage("name `log` or `proof`, then the directory or the file")
    command, path = arguments[:2]
    try:
        if command == "log":
            result = run_log(path, arguments[2:])
        else:
            result = run_proof(path, arguments[2:])
    except Damage as damage:
        print(json.dumps(damage.report()))
        return 5
    except (OSError, ValueError) as error:
        print("verify.py: %s" % error, file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
