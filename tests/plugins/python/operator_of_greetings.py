"""An operator with kopf: a Greeting gets a config map with its text."""

import kopf
import kubernetes


@kopf.on.startup()
def configure(settings, **_):
    settings.persistence.finalizer = "greetings.example.com/kopf"
    # An error of the API is tried again soon.
    settings.posting.enabled = False
    kubernetes.config.load_kube_config()


@kopf.on.create("greetings.example.com", "v1", "greetings", backoff=0.2)
@kopf.on.update("greetings.example.com", "v1", "greetings", backoff=0.2)
def greet(spec, name, namespace, body, **_):
    config_map = {"metadata": {"name": name}, "data": {"text": spec["text"]}}
    kopf.adopt(config_map, owner=body)
    api = kubernetes.client.CoreV1Api()
    try:
        api.create_namespaced_config_map(namespace, config_map)
    except kubernetes.client.ApiException as error:
        if error.status != 409:
            raise
        api.patch_namespaced_config_map(name, namespace, config_map)
