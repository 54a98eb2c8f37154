"""A bucket as others see it, through boto3.

    bucket.py ENDPOINT make BUCKET
    bucket.py ENDPOINT fetch BUCKET PREFIX DIR
"""

import os
import sys

import boto3

endpoint, what, bucket, *rest = sys.argv[1:]
s3 = boto3.client(
    "s3",
    endpoint_url=endpoint,
    region_name="eu-central-1",
    aws_access_key_id="test",
    aws_secret_access_key="test",
)
if what == "make":
    place = {"LocationConstraint": "eu-central-1"}
    s3.create_bucket(Bucket=bucket, CreateBucketConfiguration=place)
else:
    prefix, folder = rest
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for found in page.get("Contents", []):
            path = os.path.join(folder, found["Key"].removeprefix(prefix + "/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            s3.download_file(bucket, found["Key"], path)
