"""Tests of an operator with kopf: one set-up, a fork for each test."""

import pathlib
import subprocess
import sys
import time

import kubernetes
import pytest
import yaml

HERE = pathlib.Path(__file__).parent
# The client of Python names itself so; the other requests of the operator are kopf's.
CLIENT = "OpenAPI-Generator"


def api(text):
    loader = kubernetes.config.new_client_from_config_dict(yaml.safe_load(text))
    return kubernetes.client.CoreV1Api(loader), kubernetes.client.CustomObjectsApi(loader), loader


def eventually(look, seconds=60):
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = look()
            if found:
                return found
        except kubernetes.client.ApiException as error:
            if error.status != 404:
                raise
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def kaji_setup():
    def define(cluster):
        extensions = kubernetes.client.ApiextensionsV1Api(api(cluster.kubeconfig)[2])
        extensions.create_custom_resource_definition(yaml.safe_load((HERE.parent / "greetings.yaml").read_text()))

        def established():
            found = extensions.read_custom_resource_definition("greetings.greetings.example.com")
            return any(c.type == "Established" and c.status == "True" for c in found.status.conditions or [])

        eventually(established)

    return define


@pytest.fixture
def operator(kaji_cluster):
    """The operator behind the fault layer."""
    command = [sys.executable, "-m", "kopf", "run", "--standalone", "-A", str(HERE / "operator_of_greetings.py")]
    environment = {"KUBECONFIG": kaji_cluster.faults_kubeconfig_file, "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"}
    process = subprocess.Popen(command, env=environment)
    yield process
    process.terminate()
    process.wait(30)


def greet(custom, text):
    body = {
        "apiVersion": "greetings.example.com/v1",
        "kind": "Greeting",
        "metadata": {"name": "hello"},
        "spec": {"text": text},
    }
    custom.create_namespaced_custom_object("greetings.example.com", "v1", "default", "greetings", body)


def text_of(core):
    return lambda: core.read_namespaced_config_map("hello", "default").data["text"]


def test_a_greeting_gets_its_text(kaji_cluster, operator):
    core, custom, _ = api(kaji_cluster.kubeconfig)
    greet(custom, "good morning")
    assert eventually(text_of(core)) == "good morning"
    agents = {request["client"] for request in kaji_cluster.faults()["requests"]}
    assert CLIENT in agents, agents


def test_a_write_that_fails_is_done_again(kaji_cluster, operator):
    at = {"client": CLIENT, "verb": "create", "resource": "configmaps"}
    kaji_cluster.arm([{"kind": "answer-lost", "at": {**at, "nth": 1}}, {"kind": "unavailable", "at": {**at, "nth": 2}}])
    core, custom, _ = api(kaji_cluster.kubeconfig)
    greet(custom, "good night")
    assert eventually(lambda: len(kaji_cluster.faults()["fired"]) == 2)
    assert eventually(text_of(core)) == "good night"


@pytest.mark.parametrize("number", range(20))
def test_each_test_has_a_cluster_of_its_own(kaji_cluster, number):
    core, custom, _ = api(kaji_cluster.kubeconfig)
    assert not custom.list_namespaced_custom_object("greetings.example.com", "v1", "default", "greetings")["items"]
    greet(custom, str(number))


def test_time_is_moved(kaji_cluster):
    core, _, _ = api(kaji_cluster.kubeconfig)
    ahead = kaji_cluster.advance(3600)["aheadSeconds"]
    made = core.create_namespaced_config_map("default", {"metadata": {"name": "later"}})
    assert ahead == 3600
    assert made.metadata.creation_timestamp.timestamp() > time.time() + 3000
