"""Files: modes and owners, links, and what is left in the store's file of what was deleted or written before encryption."""

import base64
import json
import os
import stat
import subprocess
import tempfile

from server import Server

CONFIGURATION = {
    "apiVersion": "apiserver.config.k8s.io/v1",
    "kind": "EncryptionConfiguration",
    "resources": [{
        "resources": ["secrets"],
        "providers": [
            {"aesgcm": {"keys": [{"name": "k", "secret": base64.b64encode(b"attack-files-key-of-32-bytes-ok!").decode()}]}},
            {"identity": {}},
        ],
    }],
}


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def below(directory):
    """All files and directories in a directory."""
    for at, directories, files in os.walk(directory):
        for name in directories + files:
            yield os.path.join(at, name)


def open_to_others(directory):
    """What other users may do more with than read certificates and public keys."""
    found = []
    for path in below(directory):
        public = path.endswith((".crt", ".pub"))
        if mode(path) & (0o022 if public else 0o077):
            found.append(f"{path} {mode(path):o}")
    return found


def restarted(server, change):
    """Stops a server, changes its files, starts it."""
    server.process.terminate()
    server.process.wait()
    server.log.close()
    change()
    server.start()


def attack_umask_opens_nothing(server):
    """With a umask of 0 nothing of the data directory is open to other users."""
    before = os.umask(0)
    try:
        other = Server(server.binary)
    finally:
        os.umask(before)
    try:
        assert not open_to_others(other.data), open_to_others(other.data)
        assert mode(other.data) & 0o022 == 0 and mode(other.kubeconfig) & 0o077 == 0
    finally:
        other.stop()


def attack_open_directory_is_closed(server):
    """An existing data directory with modes 0777 and 0666 is closed before it is used."""
    other = Server(server.binary)

    def widen():
        for path in [other.data, *below(other.data)]:
            os.chmod(path, 0o777 if os.path.isdir(path) else 0o666)

    try:
        restarted(other, widen)
        assert not open_to_others(other.data), open_to_others(other.data)
        assert mode(other.data) & 0o022 == 0
    finally:
        other.stop()


def attack_foreign_owner_is_refused(server):
    """Keys that belong to another user are not used."""
    if os.geteuid() != 0:
        return
    with tempfile.TemporaryDirectory() as scratch:
        data = os.path.join(scratch, "data")
        for name in ("pki", "store"):
            os.makedirs(os.path.join(data, name), exist_ok=True)
            os.chown(os.path.join(data, name), 12345, -1)
            command = [server.binary, "apiserver", "--port", "0", "--data-dir", data, "--no-kubeconfig"]
            done = subprocess.run(command, capture_output=True, timeout=60, text=True)
            assert done.returncode != 0 and "belongs to user 12345" in done.stderr, (name, done)
            os.chown(os.path.join(data, name), 0, -1)


def attack_kubeconfig_link_is_followed(server):
    """A kubeconfig that is a symbolic link stays one, and what it leads to is private."""
    with tempfile.TemporaryDirectory() as scratch:
        target = os.path.join(scratch, "target")
        other = Server(server.binary)
        try:
            restarted(other, lambda: (os.unlink(other.kubeconfig), os.symlink(target, other.kubeconfig)))
            assert os.readlink(other.kubeconfig) == target
            assert mode(target) & 0o077 == 0, oct(mode(target))
        finally:
            other.stop()


def markers(data, count):
    """Which of the markers some file of the store holds."""
    held = b"".join(open(path, "rb").read() for path in below(os.path.join(data, "store")) if os.path.isfile(path))
    return [n for n in range(count) if base64.b64encode(marker(n).encode()) in held]


def marker(n):
    return f"marker-{n:06}-{n * 2654435761 % 2**32:08x}"


def attack_former_values_leave_no_trace(server):
    """Secrets that were clear before encryption, or deleted, are nowhere in the store once the rest is written anew."""
    secrets, count = "/api/v1/namespaces/default/secrets", 20
    other = Server(server.binary)
    try:
        for n in range(count):
            secret = {"metadata": {"name": f"s{n}"}, "stringData": {"password": marker(n)}}
            other.admin.ok("POST", secrets, secret)
        for n in range(0, count, 2):
            other.admin.ok("DELETE", f"{secrets}/s{n}")
        assert len(markers(other.data, count)) == count, "the attack looks in the wrong place"
        path = os.path.join(other.scratch.name, "encryption.yaml")
        with open(path, "w") as file:
            json.dump(CONFIGURATION, file)
        other.flags += ["--encryption-provider-config", path]
        restarted(other, lambda: None)
        for n in range(1, count, 2):
            found = other.admin.ok("GET", f"{secrets}/s{n}")
            other.admin.ok("PUT", f"{secrets}/s{n}", found)
        other.wait(lambda: not markers(other.data, count))
        for n in range(1, count, 2):
            found = other.admin.ok("GET", f"{secrets}/s{n}")["data"]["password"]
            assert base64.b64decode(found).decode() == marker(n)
    finally:
        other.stop()
