#!/usr/bin/env python3
"""Verifies a Portcullis audit log, or a proof, as FORMAT.md describes them; needs Python 3.9 alone. Exit code 5: damage; 2: usage; 1: cannot be read.
verify.py log DIRECTORY [--key FILE]... [--head SEQ:HASH]...
verify.py proof FILE --key FILE... [--old CHECKPOINT]"""
import base64, functools, hashlib, itertools, json, math, os, re, sys

P, L, D = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493, -121665 * pow(121666, -1, 2**255 - 19)
NUMBER = lambda v: type(v) is int and 0 <= v < 2**64
HASH = lambda v: isinstance(v, str) and bool(re.fullmatch("[0-9a-f]{64}", v))
TEXTS = ("kind t boot session agent user transport op path resolved to temp decision rule policy policySha256 reason backup source "
         "result nonce")
SHAPES = {**dict.fromkeys(TEXTS.split(), lambda v: isinstance(v, str)), **dict.fromkeys("v seq line bytes of".split(), NUMBER),
          **dict.fromkeys("before after prev".split(), HASH), "wouldDeny": lambda v: isinstance(v, bool),
          "findings": lambda v: isinstance(v, list), "facts": lambda v: isinstance(v, dict),
          "counts": lambda v: isinstance(v, dict) and all(map(NUMBER, v.values()))}
SMALL, NAME = 1 << 16, re.compile(r"[^\s+\x00-\x1f\x7f-\x9f]+")  # bytes of a file of notes or keys; a key's name
LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
DAY = "(?:0[1-9]|1[0-9]|2[0-8])"
DATE = f"(?:[0-9]{{4}}-(?:(?:0[1-9]|1[0-2])-{DAY}|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)|{LEAP}-02-29)"
TIME = re.compile(DATE + r"T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]{6}Z")
class Damage(Exception): pass  # kind, file, seq, line
def need(holds, *damage):
    if not holds: raise Damage(*(damage or ("bad-checkpoint",)))
def sha(data): return hashlib.sha256(data).digest()
def node(left, right): return sha(b"\1" + left + right)
def unbase64(text):
    data = base64.b64decode(text, validate=True); need(base64.b64encode(data).decode() == text); return data
def add(p, q):  # Ed25519 in extended coordinates (RFC 8032, section 5.1.4)
    a, b, c, d = (p[1] - p[0]) * (q[1] - q[0]), (p[1] + p[0]) * (q[1] + q[0]), 2 * p[3] * q[3] * D, 2 * p[2] * q[2]
    e, f, g, h = b - a, d - c, d + c, b + a; return e * f % P, g * h % P, f * g % P, e * h % P
def times(s, p):
    q = (0, 1, 1, 0)
    while s: q, p, s = add(q, p) if s & 1 else q, add(p, p), s >> 1
    return q
def point(data):
    y = int.from_bytes(data, "little"); sign, y = y >> 255, y & (2**255 - 1)
    xx = (y * y - 1) * pow(D * y * y + 1, -1, P) % P; x = pow(xx, (P + 3) // 8, P)
    if (x * x - xx) % P: x = x * pow(2, (P - 1) // 4, P) % P
    need(y < P and (x * x - xx) % P == 0 and (x or not sign))
    x = P - x if x & 1 != sign else x; return x, y, 1, x * y % P
BASE = point((4 * pow(5, -1, P) % P).to_bytes(32, "little"))
def signed(key, message, signature):
    r, s = signature[:32], int.from_bytes(signature[32:], "little"); need(len(signature) == 64 and s < L)
    for p in (point(r), point(key)): need(times(8, p)[0] % P)  # one of small order fits any text
    k = int.from_bytes(hashlib.sha512(r + key + message).digest(), "little") % L
    a, b = times(s, BASE), add(point(r), times(k, point(key)))
    need((a[0] * b[2] - b[0] * a[2]) % P == 0 and (a[1] * b[2] - b[1] * a[2]) % P == 0)
def read_keys(text):  # algorithm, key and line, by name and hash
    keys = {}
    for line in (l for l in (l.strip(" \t\r") for l in text.split("\n")) if l and l[0] != "#"):
        name, key_hash, data = line.split("+", 2); data = unbase64(data); one = keys.setdefault((name, bytes.fromhex(key_hash)), (data[0], data[1:], line))
        need(one[:2] == (data[0], data[1:]))  # two keys of one name and hash: no signature says by which it is
        need(len(data) == 33 and data[0] in (1, 4) and sha(name.encode() + b"\n" + data)[:4].hex() == key_hash)
        need(NAME.fullmatch(name)); point(data[1:])
    need(keys); return keys
def checkpoint(note, keys):  # the size and the root that one of the keys signed
    need(len(note) <= SMALL and not re.search(rb"[\0-\t\v-\x1f]", note))
    text, lines = note.decode().rsplit("\n\n", 1); text, right = text + "\n", False
    (origin, size, root), _ = text.split("\n")[:3], need(lines.endswith("\n") and lines.count("\n") <= 100 and "\n\n" not in text)
    for dash, name, data in (line.split(" ") for line in lines[:-1].split("\n")):
        data = unbase64(data); algorithm, key, _ = keys.get((name, data[:4]), (0, 0, 0))
        need(dash == "\u2014" and NAME.fullmatch(name) and len(data) > 4)
        if algorithm == 1: signed(key, text.encode(), data[4:]); right |= name == origin
        if algorithm == 4: signed(key, b"cosignature/v1\ntime %d\n" % int.from_bytes(data[4:12], "big") + text.encode(), data[12:])
    need(right and re.fullmatch("0|[1-9][0-9]{,19}", size) and int(size) < 2**64 and len(unbase64(root)) == 32)
    return int(size), unbase64(root)
def real(text): need(math.isfinite(float(text))); return float(text)
def integer(text): value = real(text); return value if text == "-0" else int(text)
def depth(text):  # how many objects and arrays are within one another
    return max(itertools.accumulate((c in "{[") - (c in "]}") for c in re.sub(r'"[^"\\]*(?:\\.[^"\\]*)*"', "", text)))
def parse(line):
    try:
        text, hooks = line.decode(), {"parse_int": integer, "parse_float": real, "parse_constant": lambda _: 1 / 0}
        need(text[:1] == "{" and text[-1] == "}")
        fields, record = json.loads(text, object_pairs_hook=list, **hooks), json.loads(text, **hooks)
        need(text.count("[") + text.count("{") < 128 or depth(text) < 128)
        if "\\" in text: json.dumps(fields, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, ArithmeticError, Damage, RecursionError): raise Damage("malformed-record")
    need(len(record) == len(fields), "duplicate-key"); need(not NUMBER(record.get("v")) or record["v"] == 1, "unsupported-version")
    need(all(SHAPES[k](v) for k, v in record.items() if k in SHAPES) and {"v", "seq", "kind", "t", "nonce", "prev"} <= set(record)
         and all(NUMBER(v) for _, v in dict(fields).get("counts", ())) and TIME.fullmatch(record["t"]) and re.fullmatch("[0-9a-f]{32}", record["nonce"])
         and (record["kind"] != "outcome" or "of" in record), "malformed-record")
    return record
def grow(tree, root, level):  # adds a whole subtree to a list of them, largest first
    while tree and tree[-1][1] == level: root, level = node(tree.pop()[0], root), level + 1
    tree.append((root, level))
def top(tree): return functools.reduce(lambda right, left: node(left[0], right), tree[-2::-1], tree[-1][0])
def folder(path): return os.path.isdir(path) and not os.path.islink(path)
def regular(path): return os.path.isfile(path) and not os.path.islink(path)
def segment(name):  # whether it is the name of one
    return re.fullmatch("seg-[0-9]{6,15}[.]jsonl", name) and name == "seg-%06d.jsonl" % int(name[4:-6]) and int(name[4:-6]) < 2**48
def trusted(file, seq, action):
    try: return action()
    except (ValueError, IndexError, Damage): raise Damage("bad-checkpoint", file, seq, None)
def log(directory, key_text=None, heads={}):  # `heads` has sets; the number of records, how many are signed, the head
    path = lambda *names: os.path.join(directory, *names)
    def small(name, kind="bad-checkpoint"):  # a file of another type may never end
        if not os.path.lexists(path(name)): return None
        need(regular(path(name)), kind, name, None, None)
        with open(path(name), "rb") as file: return file.read(65 << 20)
    shown = lambda name: os.fsencode(name).decode(errors="replace")  # of what is no UTF-8
    names = sorted(os.listdir(directory), key=shown)
    if not any(n.startswith("seg-") or n in ("checkpoint", "checkpoints", "key.vkey", "roots", "frontier", "quarantine")
               or (n == "lock" and regular(path(n))) for n in names): sys.exit("there is no audit log at %r; did you mean STATE/audit?" % directory)
    heads, segments = dict(heads), []
    for name in names:
        if name[-4:] == ".zst" and segment(name[:-4]) and regular(path(name)):  # the plain one counts
            name[:-4] in names or sys.exit("%s is compressed: unpack it first (zstd -d)" % name); continue
        right = name[:4] != "seg-" or segment(name)
        right = right and (name[:4] != "seg-" and name not in ("lock", "frontier") or regular(path(name))) and (name != "quarantine" or folder(path(name)))
        need(right, "unexpected-file", shown(name), None, None)
        if name[:4] == "seg-": segments.append(int(name[4:-6]))
    own = small("key.vkey")
    own = trusted("key.vkey", None, lambda: need(len(own) <= SMALL) or read_keys(own.decode(errors="replace"))) if own is not None else None
    kept = os.listdir(path("checkpoints")) if folder(path("checkpoints")) else ()
    kept = {int(n) for n in kept if re.fullmatch("0|[1-9][0-9]{,19}", n) and int(n) < 2**64}
    keys = read_keys(key_text) if key_text is not None else own; named = [key[2] for key in (keys or {}).values()]
    need(named or not ("checkpoint" in names or kept), "missing-key", "key.vkey", None, None)
    need(key_text is None or own is None or list(own.values())[0][2] in named, "wrong-key", "key.vkey", None, None)
    need("checkpoints" not in names or folder(path("checkpoints")), "bad-checkpoint", "checkpoints", None, None)
    newest = small("checkpoint")
    newest = trusted("checkpoint", None, lambda: checkpoint(newest, keys))[0] if newest is not None else -1
    roots = [bytes.fromhex(r) if HASH(r) else None for r in (small("roots", "wrong-root") or b"").decode("latin-1").split("\n")]
    while roots and roots[-1] is None: roots.pop()
    tree, part, opened, gone, seq, prev, first, covered, told = [], [], set(), 0, 0, bytes(32), None, 0, False
    signing, stopped = set(), False  # gateways that named their key; one of them stopped in order, which leaves a checkpoint
    def compare(seq, root):  # what is signed of the first so many records
        for at in ["checkpoints/%d" % seq] * (seq in kept) + ["checkpoint"] * (newest == seq):
            place = at, seq - 1 if seq else None; note = trusted(*place, lambda: small(at))
            size, said = trusted(*place, lambda: checkpoint(note, keys))
            need(size == seq, "bad-checkpoint", *place, None); need(said == root, "wrong-root", *place, None); yield seq
    covered = max([covered, *compare(0, sha(b""))]); segments.sort()
    if segments and 0 < segments[0] <= len(roots) and None not in roots[:segments[0]]:  # pruned, if a record says so
        gone, seq, prev = segments[0], segments[0] << 16, None
        for root in roots[:gone]: grow(tree, root, 16)
        covered = max([covered, *compare(seq, top(tree))])
    for place, number in enumerate(segments, gone):
        name, line, last = "seg-%06d.jsonl" % place, 0, number == segments[-1]
        need(place == number, "missing-segment", name, place << 16, None); file = open(path(name), "rb")
        need(os.fstat(file.fileno()).st_size <= 65536 * (2**20 + 1), "bad-segment", name, seq, None)
        while data := file.readline(2**20 + 1):
            line += 1; at = name, seq, line; need(line <= 65536, "long-segment", *at)
            need(data[-1:] == b"\n", "long-line" if len(data) > 2**20 else "torn-tail" if last else "unterminated-line", *at)
            try: record = parse(data[:-1])
            except Damage as damage: raise Damage(damage.args[0], *at)
            leaf, kind, of, facts = sha(b"\0" + data[:-1]), record["kind"], record.get("of"), record.get("facts", {})
            need(record["seq"] == seq, "wrong-sequence", *at); first = first or record["prev"]
            need(prev is None or record["prev"] == prev.hex(), "broken-link", *at)
            if kind == "intent": opened.add(seq)
            elif kind in ("outcome", "recovered") and of is not None:
                need(of in opened, "wrong-reference", *at); opened.remove(of)
            if kind in ("pruned", "recovered") and NUMBER(count := facts.get("segments")): told |= count > gone or (count == gone and facts.get("head") == first)
            need(heads.pop(seq, {leaf.hex()}) == {leaf.hex()}, "wrong-head", *at)
            if kind == "start" and isinstance(named_key := facts.get("checkpointKey"), str):
                need(named, "missing-key", "key.vkey", seq, None); need(named_key in named, "wrong-key", "key.vkey", seq, None); signing.add(record.get("boot"))
            stopped |= kind == "stop" and record.get("boot") in signing
            if kind == "recovered" and facts.get("what") == "unsigned": signing, stopped = set(), False
            grow(part, leaf, 0); prev, seq = leaf, seq + 1
            if seq % 65536 == 0:
                need(place >= len(roots) or roots[place] == part[0][0], "wrong-root", "roots", seq - 1, None)
                grow(tree, part[0][0], 16); part = []
            if seq in kept or seq == newest: covered = max([covered, *compare(seq, top(tree + part))])
        need(last or line == 65536, "short-segment", name, seq, line or None)
    need(not gone or told, "missing-segment", "seg-000000.jsonl", 0, None)
    for h in sorted(heads): need(h >= gone << 16 or len(heads[h]) == 1, "wrong-head", "seg-%06d.jsonl" % (h >> 16), h, None)
    for size in [h + 1 for h in sorted(heads) if h >= gone << 16] + [n for n in (*sorted(kept), newest) if n > seq]:
        raise Damage("missing-head", "seg-%06d.jsonl" % (seq >> 16), size - 1, None)
    need(covered or not (stopped or key_text is not None and seq), "missing-checkpoint", "checkpoint", None, None)
    unchecked = {"prunedHeads": sorted(heads)} if heads else {}  # of records that are gone
    return {"records": seq - (gone << 16), "signed": covered, "head": {"seq": seq - 1, "leaf": prev.hex()} if seq else None, **unchecked}
def include(leaf, index, size, hashes):  # RFC 6962, section 2.1.1
    if size == 1: need(not hashes); return leaf
    half = 1 << (size - 1).bit_length() - 1  # RFC 6962 splits there
    if index < half: return node(include(leaf, index, half, hashes[:-1]), hashes[-1])
    return node(hashes[-1], include(leaf, index - half, size - half, hashes[:-1]))
def both(old, size, hashes, known):  # RFC 6962, section 2.1.2: the old root and the new one
    if old == size: need(len(hashes) == (known is None)); return (known or hashes[0],) * 2
    half = 1 << (size - 1).bit_length() - 1
    before, after = both(old, half, hashes[:-1], known) if old <= half else both(old - half, size - half, hashes[:-1], None)
    return (before, node(after, hashes[-1])) if old <= half else (node(hashes[-1], before), node(hashes[-1], after))
def proof(data, keys, old):
    need(len(data) <= 2 << 20, "no-proof"); head, note = data.split(b"\n\n", 1); (size, root), lines = checkpoint(note, keys), head.decode().split("\n")
    if lines[0].startswith("old "):
        need(old is not None, "no-proof"); before = checkpoint(old, keys); need(lines[0] == "old %d" % before[0] and 0 < before[0] <= size)
        need(both(before[0], size, list(map(unbase64, lines[1:])), before[1]) == (before[1], root)); return {"from": before[0], "size": size}
    need(old is None, "no-proof")  # of growth from there
    need(lines[0] == "c2sp.org/tlog-proof@v1" and lines[1].startswith("extra ") and re.fullmatch("index (?:0|[1-9][0-9]{,19})", lines[2]))
    line, index = unbase64(lines[1][6:]), int(lines[2][6:]); need(len(line) <= 1 << 20 and index < size and parse(line)["seq"] == index)
    need(include(sha(b"\0" + line), index, size, list(map(unbase64, lines[3:]))) == root); return {"seq": index, "size": size, "line": line.decode()}
def usage(words): print("verify.py: " + words, __doc__, sep="\n", file=sys.stderr); sys.exit(2)
def options(words, known):  # values by name; what is not understood is never passed over
    of, words = {name: [] for name in known}, iter(words)
    for word in words:
        name, equals, value = word.partition("="); value = value if equals else next(words, "")
        if name not in of: usage("%r is no option here" % word)
        if not value or value.startswith("--"): usage("%s needs a value" % name)
        of[name].append(value)
    return of
def key_texts(names):  # every file must hold a key
    texts = [open(name, "rb").read().decode() for name in names]; need(all(map(read_keys, texts))); return "\n".join(texts) or None
def main(what, where, *words):
    of = options(words, ("--key", "--head") if what == "log" else ("--key", "--old")); olds = of.get("--old", []); heads = {}; len(olds) > 1 and usage("--old is given once")
    for match, head in ((re.fullmatch("([0-9]{1,20}):([0-9a-f]{64})", head), head) for head in of.get("--head", [])):
        if not match or int(match[1]) >= 2**64: usage("%r is no SEQ:HASH" % head)
        heads.setdefault(int(match[1]), set()).add(match[2])
    if what == "log": return log(where, key_texts(of["--key"]), heads)
    old = open(olds[0], "rb").read() if olds else None
    data = open(where, "rb").read(); old is None and data[:4] == b"old " and usage("a proof of growth needs the older checkpoint (--old)")
    try: return proof(data, read_keys(key_texts(of["--key"])), old)
    except (ValueError, IndexError, AttributeError): raise Damage("no-proof")
if __name__ == "__main__":
    if sys.argv[1:2] not in (["log"], ["proof"]) or len(sys.argv) < 3: usage("log or proof, and of what?")
    try: print(json.dumps(main(*sys.argv[1:])))
    except Damage as damage: print(json.dumps(dict(zip(("kind", "segment", "seq", "line"), damage.args)))); sys.exit(5)
    except (OSError, UnicodeDecodeError) as error: sys.exit("verify.py: %s" % error)
