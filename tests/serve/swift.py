"""OpenStack Swift with its S3 interface, one process a service, on loopback: a real object store for tests.

It runs from an environment of its own, under ~/.cache/overland/peers (OVERLAND_PEERS names another folder):

    python -m venv ~/.cache/overland/peers/swift
    ~/.cache/overland/peers/swift/bin/pip install swift==2.38.3 "setuptools<80"
"""

from __future__ import annotations

import datetime
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

FOLDER = Path(os.environ.get("OVERLAND_PEERS") or Path.home() / ".cache/overland/peers") / "swift"
KEYS = {"AWS_ACCESS_KEY_ID": "test:tester", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_REGION": "us-east-1"}
SERVICE = """
[DEFAULT]
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
disable_fallocate = true
[pipeline:main]
pipeline = {name}-server
[app:{name}-server]
use = egg:swift#{name}
"""
PROXY = """
[DEFAULT]
swift_dir = {folder}
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
[pipeline:main]
pipeline = catch_errors healthcheck listing_formats s3api tempauth copy slo dlo proxy-server
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
"""
FILTERS = "".join(
    f"[filter:{name}]\nuse = egg:swift#{name}\n"
    for name in ("catch_errors", "healthcheck", "listing_formats", "copy", "slo", "dlo")
)


def installed() -> bool:
    """Whether the environment is there."""
    return (FOLDER / "bin" / "swift-proxy-server").exists()


@contextmanager
def swift(folder: Path, bucket: str) -> Iterator[str]:
    """A running store with an empty bucket; gives the address of its S3 interface. Its keys are KEYS."""
    (folder / "devices" / "d1").mkdir(parents=True)
    (folder / "swift.conf").write_text(
        "[swift-hash]\nswift_hash_path_prefix = a\nswift_hash_path_suffix = b\n"
        "[storage-policy:0]\nname = one\ndefault = yes\n"
    )
    user = os.environ.get("USER") or "root"
    ports = {name: _free_port() for name in ("account", "container", "object", "proxy")}
    for name in ("account", "container", "object"):
        ring = [str(FOLDER / "bin" / "swift-ring-builder"), f"{name}.builder"]
        for step in (["create", "2", "1", "1"], ["add", f"r1z1-127.0.0.1:{ports[name]}/d1", "1"], ["rebalance"]):
            subprocess.run([*ring, *step], cwd=folder, check=True, capture_output=True)
        (folder / f"{name}.conf").write_text(SERVICE.format(folder=folder, port=ports[name], user=user, name=name))
    (folder / "proxy.conf").write_text(PROXY.format(folder=folder, port=ports["proxy"], user=user) + FILTERS)
    running = [
        subprocess.Popen(
            [str(FOLDER / "bin" / f"swift-{name}-server"), str(folder / f"{name}.conf")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name in ports
    ]
    url = f"http://127.0.0.1:{ports['proxy']}"
    try:
        _wait(f"{url}/healthcheck")
        _make_bucket(url, bucket)
        yield url
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait(url: str) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise RuntimeError("Swift did not start")


def _make_bucket(url: str, bucket: str) -> None:
    """Buckets are made with a signed PUT of their own."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        bucket,
        endpoint=url,
        access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        region=KEYS["AWS_REGION"],
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    httpx.put(obstore.sign(store, "PUT", "", datetime.timedelta(minutes=1))).raise_for_status()
