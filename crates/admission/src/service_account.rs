//! `ServiceAccount`: every pod has a service account that exists, and gets its token volume and image pull secrets.
//!
//! Invariant: mirror pods are left as the kubelet made them; they may name neither accounts nor secrets.

use crate::pod_spec::{LISTS, containers, secret_names};
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{GroupResource, Status, object, random, text::quote};
use kaji_resource::BoxFuture;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// The account of pods that name none.
const DEFAULT: &str = "default";
const MIRROR: &str = "kubernetes.io/config.mirror";
const ENFORCE_MOUNTABLE: &str = "kubernetes.io/enforce-mountable-secrets";
const VOLUME_PREFIX: &str = "kube-api-access-";
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Seconds; the odd number distinguishes tokens that are extended to a year from those that clients requested.
const TOKEN_LIFE: i64 = 3607;
/// A namespace's default account is made by a controller: how long, and how often, a pod waits for it.
const WAIT: Duration = Duration::from_millis(25);
const WAITS: usize = 60;

/// The plugin.
pub(super) struct ServiceAccount;

impl Admission for ServiceAccount {
    fn name(&self) -> &'static str {
        "ServiceAccount"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        let phases = match operation {
            Operation::Create => Phases::BOTH,
            Operation::Update => Phases::VALIDATING,
            Operation::Delete | Operation::Connect => Phases::NONE,
        };
        phases.when((group, resource) == ("", "pods"))
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.subresource == if a.operation == Operation::Create { "" } else { "ephemeralcontainers" }
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let Some(pod) = a.object.as_deref_mut() else { return Ok(()) };
            if object::annotation(pod, MIRROR).is_some() {
                return check(a).await;
            }
            if object::str_at(pod, &["spec", "serviceAccountName"]).is_empty() {
                object::set_at(pod, &["spec", "serviceAccountName"], DEFAULT);
                object::set_at(pod, &["spec", "serviceAccount"], DEFAULT);
            }
            let account = account_of(a).await?;
            let Some(pod) = a.object.as_deref_mut() else { return Ok(()) };
            if automounts(&account, pod) {
                let name = random::generate_name(VOLUME_PREFIX, a.random);
                mount_token(pod, name);
            }
            let pulls = object::arr_at(&account, &["imagePullSecrets"]);
            if object::arr_at(pod, &["spec", "imagePullSecrets"]).is_empty() && !pulls.is_empty() {
                let named = |s: &Value| json!({"name": object::str_at(s, &["name"])});
                object::set_at(
                    pod,
                    &["spec", "imagePullSecrets"],
                    pulls.iter().map(named).collect::<Vec<_>>(),
                );
            }
            check(a).await
        })
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(check(a))
    }
}

async fn check(a: &Attributes<'_>) -> Result<(), Status> {
    let Some(pod) = a.new_object() else { return Ok(()) };
    if a.operation == Operation::Create && object::annotation(pod, MIRROR).is_some() {
        return mirror(pod).map_err(|text| a.forbidden(text));
    }
    if object::str_at(pod, &["spec", "serviceAccountName"]).is_empty() {
        let name = object::name(pod);
        return Err(a.forbidden(format!("no service account specified for pod {}/{name}", a.namespace)));
    }
    let account = account_of(a).await?;
    if !object::annotation(&account, ENFORCE_MOUNTABLE).is_some_and(is_true) {
        return Ok(());
    }
    let ephemeral = a.operation == Operation::Update;
    only_mountable(&account, pod, ephemeral).map_err(|text| a.forbidden(text))
}

/// Go's `strconv.ParseBool`, with anything else being false.
fn is_true(text: &str) -> bool {
    matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True")
}

fn mirror(pod: &Value) -> Result<(), &'static str> {
    if !object::str_at(pod, &["spec", "serviceAccountName"]).is_empty() {
        return Err("a mirror pod may not reference service accounts");
    }
    if !secret_names(pod).is_empty() {
        return Err("a mirror pod may not reference secrets");
    }
    let sources = |v: &Value| object::arr_at(v, &["projected", "sources"]).to_vec();
    let volumes = object::arr_at(pod, &["spec", "volumes"]);
    if volumes.iter().flat_map(sources).any(|s| s["serviceAccountToken"].is_object()) {
        return Err("a mirror pod may not use ServiceAccountToken volume projections");
    }
    Ok(())
}

/// The account that the pod names.
async fn account_of(a: &Attributes<'_>) -> Result<Arc<Value>, Status> {
    let pod = a.new_object().unwrap_or(&Value::Null);
    let name = object::str_at(pod, &["spec", "serviceAccountName"]).to_owned();
    let accounts = GroupResource::new("", "serviceaccounts");
    crate::read_own_writes(a.api).await?;
    if let Some(found) = a.api.get(&accounts, a.namespace, &name) {
        return Ok(found);
    }
    let waits = if name == DEFAULT { WAITS } else { 0 };
    for wait in 0..=waits {
        if wait > 0 {
            tokio::time::sleep(WAIT).await;
        }
        a.api.sync().await?;
        if let Some(found) = a.api.get(&accounts, a.namespace, &name) {
            return Ok(found);
        }
    }
    let text = format!("serviceaccount {} not found", quote(&name));
    Err(a.forbidden(format!("error looking up service account {}/{name}: {text}", a.namespace)))
}

/// Whether the pod is given a token: it may say so itself, else its account does, else it is.
fn automounts(account: &Value, pod: &Value) -> bool {
    let own = object::bool_at(pod, &["spec", "automountServiceAccountToken"]);
    own.or_else(|| object::bool_at(account, &["automountServiceAccountToken"])).unwrap_or(true)
}

/// Mounts the token in every container that has nothing at its path; `fresh` names the volume unless there is one.
fn mount_token(pod: &mut Value, fresh: String) {
    let volumes = object::arr_at(pod, &["spec", "volumes"]);
    let present = volumes.iter().map(object_name).find(|n| n.starts_with(VOLUME_PREFIX)).map(str::to_owned);
    let has_volume = present.is_some();
    let volume = present.unwrap_or(fresh);
    let mut needed = false;
    for list in [LISTS[0], LISTS[1]] {
        let Some(Value::Array(containers)) = pod.get_mut("spec").and_then(|s| s.get_mut(list)) else {
            continue;
        };
        for container in containers {
            let mut mounts = object::arr_at(container, &["volumeMounts"]).to_vec();
            if mounts.iter().any(|m| m["mountPath"] == MOUNT_PATH) {
                continue;
            }
            mounts.push(json!({"name": volume, "readOnly": true, "mountPath": MOUNT_PATH}));
            object::set_at(container, &["volumeMounts"], mounts);
            needed = true;
        }
    }
    if needed && !has_volume {
        let mut volumes = object::arr_at(pod, &["spec", "volumes"]).to_vec();
        volumes.push(json!({"name": volume, "projected": token_source()}));
        object::set_at(pod, &["spec", "volumes"], volumes);
    }
}

fn object_name(v: &Value) -> &str {
    object::str_at(v, &["name"])
}

/// The token, the certificates to check the server by, and the namespace.
fn token_source() -> Value {
    json!({
        "defaultMode": 0o644,
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": TOKEN_LIFE, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [
                {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
            ]}},
        ],
    })
}

/// Accounts may insist that their pods use no secrets but those that the account lists.
fn only_mountable(account: &Value, pod: &Value, ephemeral: bool) -> Result<(), String> {
    let name = object::name(account);
    let listed = |field: &str, wanted: &str| {
        object::arr_at(account, &[field]).iter().any(|s| object_name(s) == wanted)
    };
    if ephemeral {
        return environment(account, pod, LISTS[2], "ephemeral container");
    }
    for volume in object::arr_at(pod, &["spec", "volumes"]).iter().filter(|v| v["secret"].is_object()) {
        let secret = object::str_at(volume, &["secret", "secretName"]);
        if !listed("secrets", secret) {
            return Err(format!(
                "volume with secret.secretName=\"{secret}\" is not allowed because service account {name} does not reference that secret"
            ));
        }
    }
    environment(account, pod, LISTS[1], "init container")?;
    environment(account, pod, LISTS[0], "container")?;
    for (i, pull) in object::arr_at(pod, &["spec", "imagePullSecrets"]).iter().enumerate() {
        let secret = object_name(pull);
        if !listed("imagePullSecrets", secret) {
            return Err(format!(
                "imagePullSecrets[{i}].name=\"{secret}\" is not allowed because service account {name} does not reference that imagePullSecret"
            ));
        }
    }
    Ok(())
}

fn environment(account: &Value, pod: &Value, list: &str, what: &str) -> Result<(), String> {
    let allowed =
        |secret: &str| object::arr_at(account, &["secrets"]).iter().any(|s| object_name(s) == secret);
    let refused = |container: &Value, how: String, secret: &str| {
        let (container, account) = (object_name(container), object::name(account));
        format!(
            "{what} {container} with {how} referencing secret.secretName=\"{secret}\" is not allowed because service account {account} does not reference that secret"
        )
    };
    for container in containers(pod, list) {
        for env in object::arr_at(container, &["env"]) {
            let Some(from) = object::at(env, &["valueFrom", "secretKeyRef"]) else { continue };
            if !allowed(object_name(from)) {
                return Err(refused(container, format!("envVar {}", object_name(env)), object_name(from)));
            }
        }
        for from in object::arr_at(container, &["envFrom"]).iter().filter_map(|e| e.get("secretRef")) {
            if !allowed(object_name(from)) {
                return Err(refused(container, "envFrom".to_owned(), object_name(from)));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn containers_get_the_token_once() {
        let mut pod = json!({"spec": {
            "volumes": [{"name": "own"}],
            "initContainers": [{"name": "i"}],
            "containers": [{"name": "a"}, {"name": "b", "volumeMounts": [{"name": "own", "mountPath": MOUNT_PATH}]}],
        }});
        mount_token(&mut pod, "kube-api-access-x".into());
        expect![[r#"{"containers":[{"name":"a","volumeMounts":[{"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount","name":"kube-api-access-x","readOnly":true}]},{"name":"b","volumeMounts":[{"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount","name":"own"}]}],"initContainers":[{"name":"i","volumeMounts":[{"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount","name":"kube-api-access-x","readOnly":true}]}],"volumes":[{"name":"own"},{"name":"kube-api-access-x","projected":{"defaultMode":420,"sources":[{"serviceAccountToken":{"expirationSeconds":3607,"path":"token"}},{"configMap":{"items":[{"key":"ca.crt","path":"ca.crt"}],"name":"kube-root-ca.crt"}},{"downwardAPI":{"items":[{"fieldRef":{"apiVersion":"v1","fieldPath":"metadata.namespace"},"path":"namespace"}]}}]}}]}"#]]
        .assert_eq(&pod["spec"].to_string());
        let once = pod.clone();
        mount_token(&mut pod, "kube-api-access-y".into());
        assert_eq!(pod, once);
    }

    #[test]
    fn pod_overrides_account_about_token_mount() {
        let says = |v: Option<bool>| v.map_or(json!({}), |b| json!({"automountServiceAccountToken": b}));
        let mounts = |account, pod| automounts(&says(account), &json!({"spec": says(pod)}));
        assert!(mounts(None, None));
        assert!(!mounts(Some(false), None));
        assert!(mounts(Some(false), Some(true)));
        assert!(!mounts(Some(true), Some(false)));
    }

    #[test]
    fn rejects_mirror_pods_with_secrets() {
        let of = |spec: Value| mirror(&json!({"spec": spec}));
        assert_eq!(of(json!({"containers": [{"name": "c"}]})), Ok(()));
        assert!(of(json!({"serviceAccountName": "x"})).is_err());
        assert!(of(json!({"volumes": [{"secret": {"secretName": "s"}}]})).is_err());
        assert!(of(json!({"volumes": [{"projected": {"sources": [{"serviceAccountToken": {}}]}}]})).is_err());
        assert!(of(json!({"containers": [{"envFrom": [{"secretRef": {"name": "s"}}]}]})).is_err());
    }

    #[test]
    fn enforces_mountable_secrets() {
        let account = json!({"metadata": {"name": "sa"}, "secrets": [{"name": "ok"}], "imagePullSecrets": [{"name": "pull"}]});
        let of = |spec: Value| only_mountable(&account, &json!({"spec": spec}), false).unwrap_err();
        let env = |s: &str| json!([{"name": "c", "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": s}}}]}]);
        let fine = json!({"spec": {"containers": env("ok"), "imagePullSecrets": [{"name": "pull"}]}});
        assert_eq!(only_mountable(&account, &fine, false), Ok(()));
        expect![[r#"volume with secret.secretName="s" is not allowed because service account sa does not reference that secret"#]]
            .assert_eq(&of(json!({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]})));
        expect![[r#"container c with envVar E referencing secret.secretName="s" is not allowed because service account sa does not reference that secret"#]]
            .assert_eq(&of(json!({"containers": env("s")})));
        expect![[r#"init container c with envFrom referencing secret.secretName="s" is not allowed because service account sa does not reference that secret"#]]
            .assert_eq(&of(json!({"initContainers": [{"name": "c", "envFrom": [{"secretRef": {"name": "s"}}]}]})));
        expect![[r#"imagePullSecrets[0].name="ok" is not allowed because service account sa does not reference that imagePullSecret"#]]
            .assert_eq(&of(json!({"imagePullSecrets": [{"name": "ok"}]})));
    }
}
