"""A server process under a memory cap, and users of it."""

import base64
import os
import re
import resource
import signal
import subprocess
import tempfile
import time

from client import Client


class Server:
    """`kaji up` over a data directory of its own. `memory`: MiB of private memory that it may map, None for no cap."""

    def __init__(self, binary, memory=None, flags=(), directory=None):
        self.binary, self.memory, self.flags = binary, memory, list(flags)
        self.keep = directory
        self.scratch = tempfile.TemporaryDirectory(prefix="kaji-attack-")
        self.data = directory or os.path.join(self.scratch.name, "data")
        self.kubeconfig = os.path.join(self.scratch.name, "kubeconfig")
        self.tokens = {}
        self.start()

    def start(self):
        if os.path.exists(self.kubeconfig):
            os.unlink(self.kubeconfig)
        self.log = open(os.path.join(self.scratch.name, "log"), "ab")
        command = [self.binary, "up", "--port", "0", "--data-dir", self.data, "--kubeconfig", self.kubeconfig]
        if not any(flag.startswith("--nodes") for flag in self.flags):
            command += ["--nodes", "none"]
        self.process = subprocess.Popen(
            command + self.flags, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL, preexec_fn=self.limit
        )
        self.wait(lambda: os.path.exists(self.kubeconfig) and os.path.getsize(self.kubeconfig) > 0)
        text = open(self.kubeconfig).read()
        field = lambda name: base64.b64decode(re.search(name + r"\"?:\s*(?:>-\s*)?\"?([A-Za-z0-9+/=]+)", text).group(1)).decode()
        self.host, port = re.search(r"server\"?:\s*\"?https://([^:/]+):(\d+)", text).groups()
        self.port = int(port)
        self.authority = field("certificate-authority-data")
        certificate = os.path.join(self.scratch.name, "admin.pem")
        with open(certificate, "w") as file:
            file.write(field("client-certificate-data") + "\n" + field("client-key-data"))
        self.admin = Client(self.host, self.port, self.authority, certificate=certificate)
        self.anonymous = Client(self.host, self.port, self.authority)
        self.wait(lambda: self.admin.get("/readyz").code == 200)

    def limit(self):
        if self.memory:
            resource.setrlimit(resource.RLIMIT_DATA, (self.memory << 20, self.memory << 20))

    def wait(self, condition, seconds=60):
        """Waits for a condition; an OSError counts as not yet."""
        end = time.monotonic() + seconds
        while True:
            try:
                if condition():
                    return
            except OSError:
                pass
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}: {self.tail()}"
            assert time.monotonic() < end, f"nothing after {seconds} s: {self.tail()}"
            time.sleep(0.05)

    def tail(self):
        with open(os.path.join(self.scratch.name, "log"), "rb") as file:
            return file.read()[-2000:].decode("utf-8", "replace")

    def status(self, field):
        """A field of /proc/PID/status in MiB."""
        with open(f"/proc/{self.process.pid}/status") as file:
            return int(re.search(rf"^{field}:\s+(\d+) kB", file.read(), re.M).group(1)) / 1024

    def peak(self):
        """The highest resident memory so far, in MiB."""
        return self.status("VmHWM")

    def forget_peak(self):
        with open(f"/proc/{self.process.pid}/clear_refs", "w") as file:
            file.write("5")

    def cpu(self):
        """Seconds of processor time that the process has used."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def namespace(self, name):
        self.admin.json("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        return f"/api/v1/namespaces/{name}"

    def account(self, namespace, name, rules=(), cluster_rules=()):
        """A service account with these rules in its namespace, and those in the whole cluster."""
        core, rbac = f"/api/v1/namespaces/{namespace}", "/apis/rbac.authorization.k8s.io/v1"
        self.namespace(namespace)
        self.admin.ok("POST", f"{core}/serviceaccounts", {"metadata": {"name": name}})
        subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
        for where, kind, some in ((f"{rbac}/namespaces/{namespace}", "", rules), (rbac, "cluster", cluster_rules)):
            if not some:
                continue
            role, full = ("ClusterRole" if kind else "Role"), f"{namespace}-{name}"
            meta = {"metadata": {"name": full}}
            self.admin.ok("POST", f"{where}/{kind}roles", {**meta, "rules": list(some)})
            reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": full}
            self.admin.ok("POST", f"{where}/{kind}rolebindings", {**meta, "roleRef": reference, "subjects": [subject]})
        token = self.admin.ok("POST", f"{core}/serviceaccounts/{name}/token", {"spec": {}})["status"]["token"]
        return Client(self.host, self.port, self.authority, token=token)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.log.close()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        self.scratch.cleanup()


def rule(verbs, resources, groups=("",), names=()):
    """A rule of a role."""
    found = {"verbs": list(verbs), "resources": list(resources), "apiGroups": list(groups)}
    return {**found, "resourceNames": list(names)} if names else found
