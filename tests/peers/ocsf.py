"""Validates the events in a file against the published OCSF schema of the
version that they name, and prints how many there are."""

import json
import sys

import jsonschema
from ocsf_json_schema import OcsfJsonSchemaEmbedded, get_ocsf_schema

validators = {}
count = 0
for line in open(sys.argv[1], encoding="utf-8"):
    event = json.loads(line)
    metadata = event["metadata"]
    key = metadata["version"], event["class_uid"], tuple(metadata["profiles"])
    if key not in validators:
        published = OcsfJsonSchemaEmbedded(get_ocsf_schema(version=key[0]))
        name = published.lookup_class_name_from_uid(class_uid=key[1])
        schema = published.get_class_schema(class_name=name, profiles=list(key[2]))
        validators[key] = jsonschema.Draft202012Validator(schema)
    validators[key].validate(event)
    count += 1
print(count, "valid")
