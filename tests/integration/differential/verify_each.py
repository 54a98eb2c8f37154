"""Answers of audit/verify.py to one log after another, in one process: a request a line on
stdin, {"directory", "key" (text or null), "heads" ({seq: leaf})} or {"proof", "key"}, an answer a
line on stdout."""
import importlib.util
import json
import sys

sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("verify", sys.argv[1])
verify = importlib.util.module_from_spec(spec)
spec.loader.exec_module(verify)

# Most logs have the signatures of their seed, and one costs more than all else.
known, check_signature = {}, verify.check_signature


def remembered(*of):
    of = tuple(bytes(part) for part in of)
    if of not in known:
        try:
            check_signature(*of)
            known[of] = None
        except verify.Damage as error:
            known[of] = error
    if known[of] is not None:
        raise known[of]


verify.check_signature = remembered


def answer(request):
    heads = {int(seq): {leaf} for seq, leaf in request["heads"].items()}
    try:
        found = verify.verify_log(request["directory"], request["key"], heads)
        return {"intact": {name: found[name] for name in ("records", "signed", "head")}}
    except verify.Damage as damage:
        return {"damage": damage.report()}
    except SystemExit:
        return {"none": True}


def holds(request):
    try:
        verify.verify_proof(request["proof"].encode(), verify.parse_keys(request["key"]))
        return {"valid": True}
    except (ValueError, IndexError, verify.Damage):
        return {"valid": False}


for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps(holds(request) if "proof" in request else answer(request)), flush=True)
