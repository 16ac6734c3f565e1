"""The pytest plug-in: one process of `kaji envtest serve` a session, one fork a test.

    @pytest.fixture(scope="session")
    def kaji_setup():
        return lambda cluster: apply("crd.yaml", cluster.kubeconfig_file)

    def test_operator(kaji_cluster):
        operator(kaji_cluster.kubeconfig_file)

`kaji_controllers` and `kaji_nodes` in the ini file say what runs in the cluster.
"""

import pytest

from kaji_pytest import Control


def pytest_addoption(parser):
    parser.addini("kaji_controllers", "control loops of the clusters, as kube-controller-manager's --controllers", "args")
    parser.addini("kaji_nodes", "simulated nodes of the clusters", default="0")


@pytest.fixture(scope="session")
def kaji_setup():
    """What is done to the base, once: overridden by a function of a cluster."""
    return lambda cluster: None


@pytest.fixture(scope="session")
def kaji_control(pytestconfig):
    """The control."""
    nodes = int(pytestconfig.getini("kaji_nodes"))
    with Control(controllers=pytestconfig.getini("kaji_controllers"), nodes=nodes) as control:
        yield control


@pytest.fixture(scope="session")
def kaji_base(kaji_control, kaji_setup):
    """The cluster that is set up once, and forked."""
    kaji_setup(kaji_control.base)
    return kaji_control.base


@pytest.fixture
def kaji_cluster(kaji_base):
    """A cluster of the test's own: a fork, which ends with it."""
    with kaji_base.fork() as cluster:
        yield cluster
