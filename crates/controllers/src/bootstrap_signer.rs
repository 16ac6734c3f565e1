//! `kube-public/cluster-info` is signed with every token that may sign, so that a client with a token can verify that
//! the server and the authority named in it are the right ones.
//!
//! Invariants: signatures are detached JWS (RFC 7515, appendix F; HS256 with the token's secret as key) under
//! `jws-kubeconfig-<token id>`; there is one for each usable token and none else. What is signed is never changed here.

use crate::{
    Descriptor, Start,
    shared::bootstrap_tokens::{self, Validity, is_token, text, validity},
};
use kaji_auth::cluster_info;
use kaji_runtime::{
    Change, Controller, Cx, Informers, Key, PatchKind, Plan, Reconciler, View, Write,
    client::Target,
    objects::{ConfigMap, Secret},
};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, sync::Arc};

const NAMESPACE: &str = "kube-public";
const NAME: &str = "cluster-info";
const CONTENT: &str = "kubeconfig";
const SIGNATURE: &str = "jws-kubeconfig-";

const COMPONENT: &str = "bootstrap-signer";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "bootstrap-signer-controller",
    components: &[COMPONENT],
    service_account: Some("bootstrap-signer"),
    workers: None,
    start: Start::Reconcilers(|informers, _| vec![controller(informers)]),
};

/// The controller.
fn controller(informers: &Arc<Informers>) -> Controller {
    Controller::new(Signer, informers)
        .reads::<ConfigMap>(|change: &Change<ConfigMap>, _| {
            let key = change.any().metadata.key();
            if key == Key::new(NAMESPACE, NAME) { vec![key] } else { vec![] }
        })
        .reads::<Secret>(|change: &Change<Secret>, _| {
            let concerned = [&change.old, &change.new].into_iter().flatten().any(|s| is_token(s));
            if concerned { vec![Key::new(NAMESPACE, NAME)] } else { vec![] }
        })
        .workers(1)
}

/// Id and secret of a token that may sign now.
fn usable(secret: &Secret, now: jiff::Timestamp) -> Option<(String, String)> {
    let id = secret.metadata.name.strip_prefix("bootstrap-token-")?;
    let well_formed = id.len() == 6 && id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let key = text(secret, "token-secret");
    let good = is_token(secret)
        && well_formed
        && text(secret, "token-id") == id
        && !key.is_empty()
        && validity(secret, now) != Validity::Over
        && text(secret, "usage-bootstrap-signing") == "true";
    good.then(|| (id.to_owned(), key))
}

struct Signer;

impl Reconciler for Signer {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "bootstrap_signer_queue"
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let maps = view.get::<ConfigMap>();
        let Some(map) = maps.by_key(key).filter(|m| !m.metadata.deleting()) else { return Plan::nothing() };
        let Some(content) = map.data.get(CONTENT) else { return Plan::nothing() };
        let secrets = view.get::<Secret>();
        let wanted: BTreeMap<String, String> = secrets
            .in_namespace(bootstrap_tokens::NAMESPACE)
            .filter_map(|secret| usable(secret, cx.now))
            .map(|(id, secret)| (format!("{SIGNATURE}{id}"), cluster_info::sign(content, &id, &secret)))
            .collect();
        let mut data = Map::new();
        for key in map.data.keys().filter(|k| k.starts_with(SIGNATURE) && !wanted.contains_key(*k)) {
            data.insert(key.clone(), Value::Null);
        }
        for (key, signature) in wanted.into_iter().filter(|(k, s)| map.data.get(k) != Some(s)) {
            data.insert(key, signature.into());
        }
        if data.is_empty() {
            return Plan::nothing();
        }
        Plan::nothing().then(Write::Patch {
            target: Target::of::<ConfigMap>(NAMESPACE, NAME),
            kind: PatchKind::Merge,
            body: json!({
                "metadata": {"uid": map.metadata.uid, "resourceVersion": map.metadata.resource_version},
                "data": data,
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, reconcile, snapshot, text};
    use base64::{Engine, engine::general_purpose::STANDARD};
    use expect_test::expect;

    fn token(id: &str, change: impl Fn(&mut Value)) -> Value {
        let mut data =
            json!({"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true"});
        change(&mut data);
        let data: Map<String, Value> = data
            .as_object()
            .unwrap()
            .iter()
            .map(|(k, v)| (k.clone(), STANDARD.encode(v.as_str().unwrap()).into()))
            .collect();
        json!({"metadata": {"name": format!("bootstrap-token-{id}"), "namespace": "kube-system"},
            "type": "bootstrap.kubernetes.io/token", "data": data})
    }

    fn plan(data: Value, secrets: Vec<Value>) -> String {
        let map = json!({"metadata": {"name": NAME, "namespace": NAMESPACE, "uid": "u", "resourceVersion": "5"}, "data": data});
        let view = View::default().with(snapshot::<ConfigMap>([map])).with(snapshot::<Secret>(secrets));
        text(&reconcile(&Signer, &view, NAMESPACE, NAME, &[]))
    }

    #[test]
    fn signs_with_every_usable_token() {
        let tokens = || {
            vec![
                token("aaaaaa", |_| {}),
                token("bbbbbb", |t| t["expiration"] = ago(1).into()),
                token("cccccc", |t| t["usage-bootstrap-signing"] = "false".into()),
                token("dddddd", |t| t["token-id"] = "eeeeee".into()),
                token("ffffff", |t| t["token-secret"] = "".into()),
                token("A\"aaaa", |_| {}),
            ]
        };
        expect![[r#"
            merge /api/v1/namespaces/kube-public/configmaps/cluster-info {"data":{"jws-kubeconfig-aaaaaa":"eyJhbGciOiJIUzI1NiIsImtpZCI6ImFhYWFhYSJ9..L7XHlEaqb7f5DplyvSMCMCbRv9iPkMTE91rEO_bFzlU","jws-kubeconfig-zzzzzz":null},"metadata":{"resourceVersion":"5","uid":"u"}}
        "#]]
        .assert_eq(&plan(json!({"kubeconfig": "x", "jws-kubeconfig-zzzzzz": "old"}), tokens()));
        let done = json!({"kubeconfig": "x", "jws-kubeconfig-aaaaaa": cluster_info::sign("x", "aaaaaa", "0123456789abcdef")});
        assert_eq!(plan(done, tokens()), "");
        assert_eq!(plan(json!({}), tokens()), "");
    }
}
