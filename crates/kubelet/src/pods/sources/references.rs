//! The configuration maps and secrets that a pod refers to. Upstream's `VisitPodSecretNames` and `VisitPodConfigmapNames`.

use super::{KeyedKind, KeyedRef};
use crate::pods::core::{EnvFromSource, EnvVar, Pod, Volume};
use crate::pods::model;
use std::collections::BTreeSet;

/// All that the pod's containers, volumes and image pulls refer to.
#[must_use]
pub fn of_pod(pod: &Pod) -> BTreeSet<KeyedRef> {
    let mut names: Vec<(KeyedKind, &str)> = vec![];
    let spec = model::spec(pod);
    let pulls = spec.image_pull_secrets.iter().flatten();
    names.extend(pulls.map(|reference| (KeyedKind::Secret, reference.name.as_str())));
    for container in model::init_containers(pod).iter().chain(model::containers(pod)) {
        environment(&mut names, container.env.as_deref(), container.env_from.as_deref());
    }
    for container in model::ephemeral_containers(pod) {
        environment(&mut names, container.env.as_deref(), container.env_from.as_deref());
    }
    spec.volumes.iter().flatten().for_each(|v| volume(&mut names, v));
    let of = |(kind, name): (KeyedKind, &str)| KeyedRef {
        kind,
        namespace: model::namespace(pod).to_owned(),
        name: name.to_owned(),
    };
    names.into_iter().filter(|(_, name)| !name.is_empty()).map(of).collect()
}

fn environment<'a>(
    names: &mut Vec<(KeyedKind, &'a str)>,
    variables: Option<&'a [EnvVar]>,
    objects: Option<&'a [EnvFromSource]>,
) {
    for source in variables.into_iter().flatten().filter_map(|v| v.value_from.as_ref()) {
        names.extend(source.config_map_key_ref.iter().map(|r| (KeyedKind::ConfigMap, r.name.as_str())));
        names.extend(source.secret_key_ref.iter().map(|r| (KeyedKind::Secret, r.name.as_str())));
    }
    for source in objects.into_iter().flatten() {
        names.extend(source.config_map_ref.iter().map(|r| (KeyedKind::ConfigMap, r.name.as_str())));
        names.extend(source.secret_ref.iter().map(|r| (KeyedKind::Secret, r.name.as_str())));
    }
}

fn volume<'a>(names: &mut Vec<(KeyedKind, &'a str)>, volume: &'a Volume) {
    names.extend(volume.config_map.iter().map(|s| (KeyedKind::ConfigMap, s.name.as_str())));
    let secret = volume.secret.iter().filter_map(|s| s.secret_name.as_deref());
    names.extend(secret.map(|name| (KeyedKind::Secret, name)));
    for part in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
        names.extend(part.config_map.iter().map(|s| (KeyedKind::ConfigMap, s.name.as_str())));
        names.extend(part.secret.iter().map(|s| (KeyedKind::Secret, s.name.as_str())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_places_of_a_pod_are_looked_at() {
        let env =
            |kind: &str, name: &str| json!([{"name": "A", "valueFrom": {kind: {"name": name, "key": "k"}}}]);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": "p"},
            "spec": {
                "imagePullSecrets": [{"name": "pull"}, {"name": ""}],
                "initContainers": [{"name": "a", "env": env("secretKeyRef", "init-secret")}],
                "containers": [
                    {"name": "b", "env": env("configMapKeyRef", "map"), "envFrom": [{"configMapRef": {"name": "map"}}]},
                    {"name": "c", "envFrom": [{"secretRef": {"name": "from-secret"}}]},
                ],
                "ephemeralContainers": [{"name": "d", "env": env("configMapKeyRef", "debug")}],
                "volumes": [
                    {"name": "v", "configMap": {"name": "files"}},
                    {"name": "w", "secret": {"secretName": "key"}},
                    {"name": "x", "projected": {"sources": [
                        {"configMap": {"name": "part"}}, {"secret": {"name": "part"}}, {"downwardAPI": {}},
                    ]}},
                ],
            },
        }))
        .unwrap();
        let shown: Vec<_> =
            of_pod(&pod).iter().map(|r| format!("{} {}/{}", r.kind.word(), r.namespace, r.name)).collect();
        expect_test::expect![[r#"
            configmap n/debug
            configmap n/files
            configmap n/map
            configmap n/part
            secret n/from-secret
            secret n/init-secret
            secret n/key
            secret n/part
            secret n/pull"#]]
        .assert_eq(&shown.join("\n"));
    }
}
