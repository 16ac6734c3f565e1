//! Deletes expired bootstrap tokens.
//!
//! Invariant: a token is deleted by uid, when it expires; one with an expiration that cannot be parsed, at once.

use crate::{
    Descriptor, Start,
    shared::bootstrap_tokens::{Validity, is_token, validity},
};
use kaji_runtime::{
    Change, Controller, Cx, Informers, Key, Plan, Reconciler, View, Write, client::Target, objects::Secret,
};
use serde_json::json;
use std::{sync::Arc, time::Duration};

const COMPONENT: &str = "token-cleaner";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "token-cleaner-controller",
    components: &[COMPONENT],
    service_account: Some("token-cleaner"),
    workers: None,
    start: Start::Reconcilers(|informers, _| vec![controller(informers)]),
};

/// The controller.
fn controller(informers: &Arc<Informers>) -> Controller {
    Controller::new(Cleaner, informers).reads::<Secret>(|change: &Change<Secret>, _| {
        let secret = change.any();
        if is_token(secret) { vec![secret.metadata.key()] } else { vec![] }
    })
}

struct Cleaner;

impl Reconciler for Cleaner {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "token_cleaner"
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let secrets = view.get::<Secret>();
        let Some(secret) = secrets.by_key(key).filter(|s| is_token(s) && !s.metadata.deleting()) else {
            return Plan::nothing();
        };
        let meta = &secret.metadata;
        match validity(secret, cx.now) {
            Validity::Forever => Plan::nothing(),
            Validity::Until(end) => Plan::nothing()
                .again_after(Duration::try_from(end.duration_since(cx.now)).unwrap_or_default()),
            Validity::Over => Plan::nothing().then(Write::Delete {
                target: Target::of::<Secret>(&meta.namespace, &meta.name),
                options: json!({"preconditions": {"uid": meta.uid}}),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, reconcile, snapshot, text};
    use base64::{Engine, engine::general_purpose::STANDARD};
    use expect_test::expect;

    fn plan(kind: &str, expiration: &str) -> String {
        let secret = json!({"metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system", "uid": "u"},
            "type": kind, "data": {"expiration": STANDARD.encode(expiration)}});
        let view = View::default().with(snapshot::<Secret>([secret]));
        text(&reconcile(&Cleaner, &view, "kube-system", "bootstrap-token-abcdef", &[]))
    }

    #[test]
    fn deletes_expired_tokens() {
        const TOKEN: &str = "bootstrap.kubernetes.io/token";
        const DELETE: &str = "delete /api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef \
                              {\"preconditions\":{\"uid\":\"u\"}}\n";
        assert_eq!(plan(TOKEN, &ago(0)), DELETE);
        assert_eq!(plan(TOKEN, "tomorrow"), DELETE);
        assert_eq!(plan(TOKEN, ""), "");
        expect!["again after 60s\n"].assert_eq(&plan(TOKEN, &ago(-60)));
        assert_eq!(plan("Opaque", &ago(0)), "");
    }
}
