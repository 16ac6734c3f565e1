//! Tokens that live in secrets: one of type `kubernetes.io/service-account-token` that names an account gets a token,
//! the server's certificates and its namespace, and goes when the account does.
//! Source: upstream's `pkg/controller/serviceaccount/tokens_controller.go`.
//!
//! Invariants:
//! - Keys are secrets; those of other types are never touched.
//! - A secret is not taken for an orphan while its account may only not have been seen yet.

use crate::{Descriptor, Start, WorkersFlag};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kaji_auth::authn::{SecretToken, SigningKey, legacy_token};
use kaji_runtime::{
    Change, Controller, Cx, Informers, Key, PatchKind, Plan, Reconciler, View, Write,
    client::Target,
    objects::{Secret, ServiceAccount, TokenSecret},
};
use serde_json::{Map, Value, json};
use std::{sync::Arc, time::Duration};

const ACCOUNT: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
/// Seconds that a secret waits for its account to be observed: the two are watched separately.
const ACCOUNT_GRACE_SECONDS: i64 = 5;

const COMPONENT: &str = "serviceaccount-token-controller";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "serviceaccount-token-controller",
    components: &[COMPONENT],
    service_account: None,
    workers: Some(WorkersFlag { name: "concurrent-serviceaccount-token-syncs", default: 5 }),
    start: Start::Reconcilers(|informers, config| {
        let signer = config.token_signer.iter();
        signer.map(|signer| controller(informers, signer, &config.root_ca)).collect()
    }),
};

/// The controller. `root_ca` is PEM; `signer` is the key of the cluster's tokens.
fn controller(informers: &Arc<Informers>, signer: &Arc<SigningKey>, root_ca: &str) -> Controller {
    let root_ca = STANDARD.encode(root_ca);
    Controller::new(TokensController { signer: signer.clone(), root_ca }, informers)
        .reads::<Secret>(|change: &Change<Secret>, _| {
            let secret = change.any();
            secret.token.as_ref().map(|_| secret.metadata.key()).into_iter().collect()
        })
        .reads::<ServiceAccount>(|change: &Change<ServiceAccount>, view| {
            // Only that it comes or goes matters.
            if change.new.is_some() && change.old.is_some() {
                return vec![];
            }
            let account = &change.any().metadata;
            let secrets = view.get::<Secret>();
            let of_account = |s: &&Arc<Secret>| s.token.is_some() && named(s, ACCOUNT) == account.name;
            secrets.in_namespace(&account.namespace).filter(of_account).map(|s| s.metadata.key()).collect()
        })
}

fn named<'a>(secret: &'a Secret, annotation: &str) -> &'a str {
    secret.metadata.annotations.get(annotation).map(String::as_str).unwrap_or_default()
}

struct TokensController {
    signer: Arc<SigningKey>,
    /// Base64, as secrets hold it.
    root_ca: String,
}

impl Reconciler for TokensController {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "serviceaccount_tokens_service"
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let (secrets, accounts) = (view.get::<Secret>(), view.get::<ServiceAccount>());
        let Some(secret) = secrets.by_key(key) else {
            let named = accounts.in_namespace(&key.namespace).filter_map(|a| forget(a, &key.name));
            return named.fold(Plan::nothing(), Plan::then);
        };
        let name = named(secret, ACCOUNT);
        let Some(held) = secret.token.as_ref().filter(|_| !secret.metadata.deleting() && !name.is_empty())
        else {
            return Plan::nothing();
        };
        let uid = named(secret, ACCOUNT_UID);
        let account = accounts.get(&key.namespace, name);
        match account.filter(|a| uid.is_empty() || uid == a.metadata.uid) {
            Some(account) => self.fill(secret, held, &account.metadata.uid),
            None => {
                let made = secret.metadata.creation_timestamp.map_or(0, |t| t.as_second());
                let wait = made.saturating_add(ACCOUNT_GRACE_SECONDS).saturating_sub(cx.now.as_second());
                if let Ok(wait @ 1..) = u64::try_from(wait) {
                    return Plan::nothing().again_after(Duration::from_secs(wait));
                }
                Plan::nothing().then(Write::Delete {
                    target: Target::of::<Secret>(&key.namespace, &key.name),
                    options: json!({"preconditions": {"uid": secret.metadata.uid}}),
                })
            }
        }
    }
}

impl TokensController {
    /// Adds what a secret lacks.
    fn fill(&self, secret: &Secret, held: &TokenSecret, uid: &str) -> Plan {
        let meta = &secret.metadata;
        let account = named(secret, ACCOUNT);
        let mut data = Map::new();
        if !self.root_ca.is_empty() && held.root_ca != self.root_ca {
            data.insert("ca.crt".into(), self.root_ca.as_str().into());
        }
        if !held.namespace {
            data.insert("namespace".into(), STANDARD.encode(&meta.namespace).into());
        }
        if !held.token {
            let about =
                SecretToken { namespace: &meta.namespace, account, account_uid: uid, secret: &meta.name };
            match legacy_token(&self.signer, &about) {
                Ok(token) => data.insert("token".into(), STANDARD.encode(token).into()),
                Err(error) => {
                    tracing::warn!(%error, "cannot sign a service account's token");
                    None
                }
            };
        }
        if data.is_empty() {
            return Plan::nothing();
        }
        Plan::nothing().then(Write::Patch {
            target: Target::of::<Secret>(&meta.namespace, &meta.name),
            kind: PatchKind::Merge,
            body: json!({
                "metadata": {
                    "uid": meta.uid,
                    "resourceVersion": meta.resource_version,
                    "annotations": {ACCOUNT: account, ACCOUNT_UID: uid},
                },
                "data": data,
            }),
        })
    }
}

/// Takes a secret that is gone off an account's list.
fn forget(account: &ServiceAccount, secret: &str) -> Option<Write> {
    let at = account.secrets.iter().flatten().position(|r| r.name == secret)?;
    let body: Value = json!([
        {"op": "test", "path": "/metadata/uid", "value": account.metadata.uid},
        {"op": "test", "path": format!("/secrets/{at}/name"), "value": secret},
        {"op": "remove", "path": format!("/secrets/{at}")},
    ]);
    let target = Target::of::<ServiceAccount>(&account.metadata.namespace, &account.metadata.name);
    Some(Write::Patch { target, kind: PatchKind::Json, body })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, reconcile, snapshot, text};
    use expect_test::expect;

    /// A key for tests only.
    const KEY: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgjQeHWm8ZnWhEfFRp
N/8gm9wX3I1a7MSvcCbOl6hRLKehRANCAARIa00LNcMYhSggCSBfRYHzIFls+SjZ
bm3RaQ2OadIYYi0U3VAklWPZ0qNvReQKvAGInEMOuRAUfXrOTqAXmXK0
-----END PRIVATE KEY-----
";

    fn controller() -> TokensController {
        let signer = Arc::new(SigningKey::from_pem(KEY).unwrap());
        TokensController { signer, root_ca: STANDARD.encode("PEM") }
    }

    fn secret(kind: &str, age: i64, data: Value) -> Value {
        json!({
            "metadata": {"namespace": "ns", "name": "s", "uid": "u2", "resourceVersion": "5",
                "creationTimestamp": ago(age), "annotations": {ACCOUNT: "sa"}},
            "type": kind,
            "data": data,
        })
    }

    const KIND: &str = "kubernetes.io/service-account-token";

    fn plan(secrets: Vec<Value>, accounts: Vec<Value>) -> Plan {
        let view =
            View::default().with(snapshot::<Secret>(secrets)).with(snapshot::<ServiceAccount>(accounts));
        reconcile(&controller(), &view, "ns", "s", &[])
    }

    fn account() -> Value {
        json!({"metadata": {"namespace": "ns", "name": "sa", "uid": "u1"}, "secrets": [{"name": "other"}, {"name": "s"}]})
    }

    #[test]
    fn fills_the_secret() {
        let plan = plan(vec![secret(KIND, 0, json!({}))], vec![account()]);
        let writes: Vec<&Write> = plan.writes().collect();
        let [Write::Patch { body, .. }] = writes.as_slice() else { panic!("{writes:?}") };
        let data = |key: &str| STANDARD.decode(body["data"][key].as_str().unwrap()).unwrap();
        assert_eq!((data("ca.crt"), data("namespace")), (b"PEM".to_vec(), b"ns".to_vec()));
        assert_eq!(data("token").iter().filter(|b| **b == b'.').count(), 2);
        assert_eq!(
            body["metadata"],
            json!({"uid": "u2", "resourceVersion": "5", "annotations": {ACCOUNT: "sa", ACCOUNT_UID: "u1"}})
        );
    }

    #[test]
    fn adds_missing_fields_only() {
        let full = json!({"token": "eA==", "namespace": "bnM=", "ca.crt": STANDARD.encode("PEM")});
        assert!(plan(vec![secret(KIND, 0, full)], vec![account()]).is_empty());
        let old = json!({"token": "eA==", "namespace": "bnM=", "ca.crt": STANDARD.encode("OLD")});
        expect![[r#"
            merge /api/v1/namespaces/ns/secrets/s {"data":{"ca.crt":"UEVN"},"metadata":{"annotations":{"kubernetes.io/service-account.name":"sa","kubernetes.io/service-account.uid":"u1"},"resourceVersion":"5","uid":"u2"}}
        "#]]
        .assert_eq(&text(&plan(vec![secret(KIND, 0, old)], vec![account()])));
        assert!(plan(vec![secret("Opaque", 100, json!({}))], vec![]).is_empty());
    }

    #[test]
    fn deletes_secrets_of_deleted_accounts() {
        expect![[r#"
            delete /api/v1/namespaces/ns/secrets/s {"preconditions":{"uid":"u2"}}
        "#]]
        .assert_eq(&text(&plan(vec![secret(KIND, 6, json!({}))], vec![])));
        expect![[r#"
            again after 3s
        "#]]
        .assert_eq(&text(&plan(vec![secret(KIND, 2, json!({}))], vec![])));
        let mut other = secret(KIND, 6, json!({}));
        other["metadata"]["annotations"][ACCOUNT_UID] = "u9".into();
        assert!(text(&plan(vec![other], vec![account()])).starts_with("delete "));
    }

    #[test]
    fn ignores_deleted_secrets() {
        expect![[r#"
            json /api/v1/namespaces/ns/serviceaccounts/sa [{"op":"test","path":"/metadata/uid","value":"u1"},{"op":"test","path":"/secrets/1/name","value":"s"},{"op":"remove","path":"/secrets/1"}]
        "#]]
        .assert_eq(&text(&plan(vec![], vec![account()])));
    }
}
