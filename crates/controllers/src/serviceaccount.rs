//! Service accounts: every active namespace has one called `default`, which pods run as unless they name another.
//!
//! Invariant: keys are namespaces; nothing is created in one that is on its way out.

use crate::{Descriptor, Start, shared::pods::namespace_terminating};
use kaji_runtime::{
    Change, Controller, Cx, Informers, Key, Plan, Projection, Reconciler, View, Write,
    client::Target,
    objects::{Namespace, ServiceAccount},
};
use serde_json::json;
use std::sync::Arc;

/// The account's name.
const DEFAULT: &str = "default";

const COMPONENT: &str = "service-account-controller";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "serviceaccount-controller",
    components: &[COMPONENT],
    service_account: Some("service-account-controller"),
    workers: None,
    start: Start::Reconcilers(|informers, _| vec![controller(informers)]),
};

/// The service account controller.
fn controller(informers: &Arc<Informers>) -> Controller {
    Controller::new(ServiceAccounts, informers)
        .reads::<Namespace>(|change, _| vec![change.any().metadata.key()])
        .reads::<ServiceAccount>(|change: &Change<ServiceAccount>, _| {
            let account = &change.any().metadata;
            let lost = change.new.is_none() && account.name == DEFAULT;
            if lost { vec![Key::new("", account.namespace.as_str())] } else { vec![] }
        })
}

/// Whether objects may still be created in a namespace.
pub fn active(view: &View, namespace: &str) -> bool {
    let namespaces = view.get::<Namespace>();
    namespaces.get("", namespace).is_some_and(|ns| ns.status.phase == "Active" && !ns.metadata.deleting())
}

struct ServiceAccounts;

impl Reconciler for ServiceAccounts {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "serviceaccount"
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let namespace = key.name.as_str();
        let doomed = cx.failures.iter().any(|f| namespace_terminating(&f.error));
        if doomed
            || !active(view, namespace)
            || view.get::<ServiceAccount>().get(namespace, DEFAULT).is_some()
        {
            return Plan::nothing();
        }
        Plan::nothing().then(Write::Create {
            target: Target::of::<ServiceAccount>(namespace, ""),
            body: json!({
                "apiVersion": ServiceAccount::api_version(),
                "kind": ServiceAccount::KIND,
                "metadata": {"name": DEFAULT, "namespace": namespace},
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{reconcile, snapshot, text};
    use expect_test::expect;
    use serde_json::Value;

    fn plan(phase: &str, accounts: Vec<Value>) -> String {
        let view = View::default()
            .with(snapshot::<Namespace>([json!({"metadata": {"name": "ns"}, "status": {"phase": phase}})]))
            .with(snapshot::<ServiceAccount>(accounts));
        text(&reconcile(&ServiceAccounts, &view, "", "ns", &[]))
    }

    #[test]
    fn creates_the_default_account_in_active_namespaces() {
        expect![[r#"
            create /api/v1/namespaces/ns/serviceaccounts {"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"default","namespace":"ns"}}
        "#]]
        .assert_eq(&plan("Active", vec![]));
        expect![""].assert_eq(&plan("Terminating", vec![]));
        expect![""]
            .assert_eq(&plan("Active", vec![json!({"metadata": {"name": "default", "namespace": "ns"}})]));
    }
}
