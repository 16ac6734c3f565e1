#!/usr/bin/env python3
"""Writes and reads objects without pause through a load balancer, and tries again where client-go does.

    load.py SERVER_URL CA_FILE CERTIFICATE_FILE KEY_FILE OUTCOME_FILE

Until it gets SIGTERM it creates, reads, changes, lists and deletes configuration maps of the namespace `load`, each request over
a connection of its own and another one over a connection that is kept. What client-go repeats is repeated: any request that was
answered with 429 or 5xx and Retry-After, and reads with a connection that broke. A write that etcd has not answered, because its member
ended, is uncertain for every client; such are counted, and their objects left alone. Everything else that is not the expected answer
is a failure, and written to OUTCOME_FILE with the counts. It exits with 1 if there was one.

Source: `rest/with_retry.go` of client-go, and `shouldRetryRequest` of Go's `net/http`.
"""

import http.client
import json
import signal
import ssl
import sys
import time
import urllib.parse

PATH = "/api/v1/namespaces/load/configmaps"
# Of writes that etcd has not answered: it said so (503), or the connection to its member broke (500).
UNCERTAIN = (b'"message":"store is unavailable: etcd: ', b'"message":"the outcome of the write is not known: ')
RETRIES = 10
TIMEOUT = 60

running = True


def stop(*_):
    global running
    running = False


class Uncertain(Exception):
    """A write that may have happened."""


class Client:
    def __init__(self, url, files, kept):
        self.address = urllib.parse.urlsplit(url)
        self.trust = ssl.create_default_context(cafile=files[0])
        self.trust.load_cert_chain(files[1], files[2])
        self.kept = kept
        self.connection = None
        self.used = 0
        self.counts = {"requests": 0, "repeated": 0, "uncertain": 0}
        self.failures = []

    def connect(self):
        if self.connection is None:
            self.connection = http.client.HTTPSConnection(
                self.address.hostname, self.address.port, context=self.trust, timeout=TIMEOUT
            )
            self.used = 0

    def close(self):
        if self.connection is not None:
            self.connection.close()
        self.connection = None

    def once(self, method, path, body, headers):
        """One attempt: status, Retry-After, body. A kept connection that its server has closed meanwhile is made anew."""
        while True:
            self.connect()
            reused, self.used = self.used > 0, self.used + 1
            try:
                self.connection.request(method, path, body=body, headers=headers)
                response = self.connection.getresponse()
                text = response.read()
                if not self.kept or response.will_close:
                    self.close()
                return response.status, response.getheader("Retry-After"), text
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                self.close()
                if not reused:
                    raise
            except (OSError, http.client.HTTPException):
                self.close()
                raise

    def call(self, method, path, body=None, patch=False, expected=200):
        """A request as client-go makes it."""
        self.counts["requests"] += 1
        kind = "application/merge-patch+json" if patch else "application/json"
        text = None if body is None else json.dumps(body)
        began = time.time()
        for attempt in range(RETRIES + 1):
            try:
                status, after, answer = self.once(method, path, text, {"Content-Type": kind})
            except (OSError, http.client.HTTPException) as error:
                if method == "GET" and attempt < RETRIES:
                    self.counts["repeated"] += 1
                    time.sleep(1)
                    continue
                return self.failed(began, method, path, repr(error))
            if status == expected:
                return json.loads(answer)
            if after is not None and (status == 429 or status >= 500) and attempt < RETRIES:
                self.counts["repeated"] += 1
                time.sleep(int(after))
                continue
            if method != "GET" and any(sign in answer for sign in UNCERTAIN):
                self.counts["uncertain"] += 1
                raise Uncertain()
            return self.failed(began, method, path, f"{status} {answer[:300]}")
        return None

    def failed(self, began, method, path, text):
        at = time.strftime("%H:%M:%S", time.gmtime(began))
        self.failures.append(f"{at} +{time.time() - began:.3f}s {method} {path}: {text}")

    def round(self, name):
        """The life of an object, as far as it is certain."""
        try:
            self.live(name)
        except Uncertain:
            pass

    def live(self, name):
        of = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"n": "0"}}
        path = f"{PATH}/{name}"
        if self.call("POST", PATH, of, expected=201) is None:
            return
        for n in range(1, 4):
            self.call("PATCH", path, {"data": {"n": str(n)}}, patch=True)
            found = self.call("GET", path)
            if found is not None and found["data"]["n"] != str(n):
                self.failures.append(f"GET {path}: {found['data']} where {n} was written before")
        listed = self.call("GET", PATH)
        if listed is not None and name not in [item["metadata"]["name"] for item in listed["items"]]:
            self.failures.append(f"GET {PATH}: {name} is missing")
        self.call("DELETE", path)


def main():
    signal.signal(signal.SIGTERM, stop)
    url, *files, outcome = sys.argv[1:]
    clients = [Client(url, files, kept) for kept in (False, True)]
    n = 0
    while running:
        for i, client in enumerate(clients):
            client.round(f"m{i}-{n}")
        n += 1
        time.sleep(0.05)
    failures = [failure for client in clients for failure in client.failures]
    with open(outcome, "w", encoding="utf-8") as file:
        counts = [client.counts for client in clients]
        total = {key: sum(count[key] for count in counts) for key in counts[0]}
        file.write(f"{total['requests']} requests, {total['repeated']} repeated, {total['uncertain']} uncertain, {len(failures)} failed\n")
        file.writelines(f"{failure}\n" for failure in failures)
    sys.exit(1 if failures else 0)


main()
