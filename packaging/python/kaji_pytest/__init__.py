"""Clusters for the tests of operators: `kaji envtest serve` behind plain Python.

    with Control() as control:
        base = control.base                       # set up once: apply definitions by its kubeconfig
        with base.fork() as cluster:              # for each test
            run_operator(cluster.kubeconfig_file)

Nothing but the standard library is needed. The pytest plug-in is in kaji_pytest.plugin.
"""

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request

__all__ = ["Cluster", "Control", "ControlError"]


class ControlError(Exception):
    """The control refused a request, or did not start."""


def program():
    """The binary: KAJI, else that of the PATH (the package `kaji` brings it)."""
    found = os.environ.get("KAJI") or shutil.which("kaji")
    if not found:
        raise ControlError("there is no kaji: install the package kaji, or set KAJI to the binary")
    return found


class Control:
    """A process `kaji envtest serve`, which ends with `stop`, and with this process."""

    def __init__(self, controllers=(), nodes=0, binary=None, arguments=()):
        command = [binary or program(), "envtest", "serve", "--until-stdin-closes", f"--nodes={nodes}"]
        if controllers:
            command.append("--controllers=" + ",".join(controllers))
        self._process = subprocess.Popen([*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        line = self._process.stdout.readline()
        if not line:
            raise ControlError(f"kaji envtest serve ended with {self._process.wait()}")
        announced = json.loads(line)
        self._url, self._token = announced["control"], announced["token"]
        # The control is on the loopback: no proxy is asked.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self.base = Cluster(self, announced["cluster"])

    def request(self, method, path, body=None, timeout=120, **query):
        """Sends a request and returns the answer; `body` is JSON, or the text of a plan."""
        query = {name: value for name, value in query.items() if value is not None}
        url = f"{self._url}/v1/{path}" + ("?" + urllib.parse.urlencode(query) if query else "")
        data = None if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
        headers = {"Authorization": f"Bearer {self._token}"}
        request = urllib.request.Request(url, data=data, method=method, headers=headers)
        try:
            with self._opener.open(request, timeout=timeout) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            try:
                text = json.load(error)["error"]
            except (ValueError, KeyError):
                text = str(error)
            raise ControlError(text) from None

    def stop(self):
        """Ends the process and all clusters."""
        self._process.stdin.close()
        self._process.stdout.close()
        code = self._process.wait(60)
        if code:
            raise ControlError(f"kaji envtest serve ended with {code}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Cluster:
    """A cluster: `kubeconfig` for the test, `faults_kubeconfig` for the client under test, if it is to meet faults."""

    def __init__(self, control, description):
        self._control = control
        self.name = description["name"]
        self.url = description["url"]
        self.kubeconfig = description["kubeconfig"]
        self.kubeconfig_file = description["kubeconfigFile"]
        self.faults_url = description["faults"]["url"]
        self.faults_kubeconfig = description["faults"]["kubeconfig"]
        self.faults_kubeconfig_file = description["faults"]["kubeconfigFile"]

    def _request(self, method, part, body=None, **query):
        name = urllib.parse.quote(self.name, safe="")
        return self._control.request(method, f"clusters/{name}/{part}".rstrip("/"), body, **query)

    def fork(self, name=None):
        """Another cluster that begins as this one is."""
        return Cluster(self._control, self._request("POST", "forks", {"name": name} if name else {}))

    def delete(self):
        """Ends it."""
        self._request("DELETE", "")

    def kubeconfig_of(self, service_account, faults=False):
        """The kubeconfig of a service account, `namespace/name`: its text, and a file with it."""
        body = {"serviceAccount": service_account, "faults": faults}
        answer = self._request("POST", "kubeconfig", body)
        return answer["kubeconfig"], answer["kubeconfigFile"]

    def advance(self, seconds):
        """Moves the cluster's clock forward."""
        return self._request("POST", "clock", {"advanceSeconds": seconds})

    def clock(self):
        """The cluster's time, and how far it is ahead."""
        return self._request("GET", "clock")

    def arm(self, plan, client=None):
        """Brings faults about: a plan's text, its members, or a list of faults. `client` stands in for the plan's clients."""
        body = {"faults": plan} if isinstance(plan, list) else plan
        return self._request("PUT", "faults", body, client=client)

    def faults(self):
        """What came about, and the requests of the client under test."""
        return self._request("GET", "faults")

    def disarm(self):
        """No more faults."""
        return self._request("DELETE", "faults")

    def wait_for_kill(self, after=0, seconds=30):
        """Waits until the client was to be killed more than `after` times; how often it was."""
        return self._request("GET", "kills", after=after, seconds=seconds)["kills"]

    def release_leases(self):
        """Gives back what a killed client holds."""
        self._request("DELETE", "leases")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.delete()
