"""Packs directories as layers of images into one archive that is an OCI image layout and a `docker save` archive at once.

    pack.py ARCHIVE PLAN.json

The plan is {"layers": {name: directory}, "images": [{"names": [...], "layers": [name, ...], "config": {...}}]}; the
configuration has the members of an image's configuration (Env, Entrypoint, Cmd, User, WorkingDir, ExposedPorts).
"""

import hashlib
import json
import os
import platform
import subprocess
import sys
import tarfile
import tempfile

LAYER = "application/vnd.oci.image.layer.v1.tar"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Blobs:
    """The blobs of a layout."""

    def __init__(self, root):
        self.root = os.path.join(root, "blobs", "sha256")
        os.makedirs(self.root)

    def layer(self, directory):
        """Packs a directory; the descriptor of the layer."""
        path = os.path.join(self.root, "new")
        order = ["--sort=name", "--mtime=@0", "--numeric-owner", "--xattrs", "--xattrs-include=security.capability"]
        subprocess.run(["tar", *order, "-C", directory, "-cf", path, "."], check=True)
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        size = os.path.getsize(path)
        os.rename(path, os.path.join(self.root, digest.hexdigest()))
        return {"mediaType": LAYER, "digest": f"sha256:{digest.hexdigest()}", "size": size}

    def document(self, media_type, value):
        """Adds a document; its descriptor."""
        data = json.dumps(value, separators=(",", ":")).encode()
        digest = hashlib.sha256(data).hexdigest()
        with open(os.path.join(self.root, digest), "wb") as file:
            file.write(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def path_of(descriptor):
    """Where a blob is in the archive."""
    return "blobs/" + descriptor["digest"].replace(":", "/")


def main(archive, plan_file):
    with open(plan_file, encoding="utf-8") as file:
        plan = json.load(file)
    architecture = ARCHITECTURES.get(platform.machine(), platform.machine())
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(archive))) as root:
        blobs = Blobs(root)
        layers = {name: blobs.layer(directory) for name, directory in plan["layers"].items()}
        index, saved = [], []
        for image in plan["images"]:
            own = [layers[name] for name in image["layers"]]
            config = blobs.document(
                CONFIG,
                {
                    "architecture": architecture,
                    "os": "linux",
                    "config": image["config"],
                    "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in own]},
                },
            )
            manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": own}
            descriptor = blobs.document(MANIFEST, manifest)
            for name in image["names"]:
                annotations = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
                index.append({**descriptor, "annotations": annotations})
            saved.append({"Config": path_of(config), "RepoTags": image["names"], "Layers": [path_of(layer) for layer in own]})
        for name, value in {
            "oci-layout": {"imageLayoutVersion": "1.0.0"},
            "index.json": {"schemaVersion": 2, "mediaType": INDEX, "manifests": index},
            "manifest.json": saved,
        }.items():
            with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                json.dump(value, file)
        with tarfile.open(archive, "w") as out:
            for name in ["oci-layout", "index.json", "manifest.json", "blobs"]:
                out.add(os.path.join(root, name), arcname=name)
    print(f"{archive}: {len(plan['images'])} images, {os.path.getsize(archive) >> 20} MiB")


if __name__ == "__main__":
    main(*sys.argv[1:])
