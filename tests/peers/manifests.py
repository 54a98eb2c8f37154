"""Checks the deployment files against the schemas of Kubernetes and Compose.

usage: manifests.py COMPOSE-SCHEMA COMPOSE-FILE KUBERNETES-FILE...
"""

import json
import sys

import jsonschema
import kubernetes_validate
import yaml

schema, compose, *manifests = sys.argv[1:]
with open(schema) as file:
    validator = jsonschema.Draft7Validator(json.load(file))
with open(compose) as file:
    document = yaml.safe_load(file)
validator.validate(document)
checked = [document["services"]]
for manifest in manifests:
    with open(manifest) as file:
        for resource in yaml.safe_load_all(file):
            kubernetes_validate.validate(resource, "1.37", strict=True)
            checked.append(resource["kind"])
print(json.dumps(checked))
