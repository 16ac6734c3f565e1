#!/usr/bin/env python3
"""Packs a chart into a static Helm repository, as `helm package` and `helm repo index` would.

package.py CHART VERSION FOLDER
"""
import hashlib
import json
import os
import sys
import tarfile
from datetime import datetime, timezone

chart, version, folder = sys.argv[1:]
name = os.path.basename(chart)
described = {"apiVersion": "v2", "name": name, "version": version, "appVersion": version}
with open(os.path.join(chart, "Chart.yaml"), "w") as file:
    json.dump(described, file)
packed = f"{name}-{version}.tgz"
with tarfile.open(os.path.join(folder, packed), "w:gz") as archive:
    archive.add(chart, arcname=name)
with open(os.path.join(folder, packed), "rb") as file:
    digest = hashlib.sha256(file.read()).hexdigest()
# JSON is YAML.
index = os.path.join(folder, "index.yaml")
known = {"apiVersion": "v1", "entries": {}}
if os.path.exists(index):
    with open(index) as file:
        known = json.load(file)
now = datetime.now(timezone.utc).isoformat()
known["generated"] = now
known["entries"].setdefault(name, []).insert(0, {**described, "urls": [packed], "digest": digest, "created": now})
with open(index + ".new", "w") as file:
    json.dump(known, file)
os.replace(index + ".new", index)
