"""A local object store with S3's protocol, provided by moto."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import boto3
from moto.server import ThreadedMotoServer


@contextmanager
def s3_bucket() -> Iterator[str]:
    """Yields `s3://bucket` for an empty bucket. Clients in this process and its child processes find the store."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    bucket = f"ottla-{uuid.uuid4().hex}"
    settings = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        with patch.dict(os.environ, settings):
            boto3.client("s3").create_bucket(Bucket=bucket)
            yield f"s3://{bucket}"
    finally:
        server.stop()


def address_with_endpoint(bucket: str, path: str) -> str:
    """Returns the address with the endpoint in pyarrow's form, for processes that were started before the store."""
    name, where = bucket.removeprefix("s3://"), os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
    return f"s3://tests:tests@{name}/{path}?scheme=http&endpoint_override={where}&region=us-east-1"
