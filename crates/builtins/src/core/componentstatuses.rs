//! ComponentStatuses (deprecated upstream): computed at each request, never stored. A component that lives in this process is healthy
//! when the API server answers; others show by a lease that they run.

use crate::Deps;
use crate::shared::{conditions, table::name, value::Fields};
use kaji_meta::{GroupResource, Status};
use kaji_resource::{
    BoxFuture, CallHooks, CallRequest, Column, Ctx, Hooks, ResourceDef, Scope, Verb, name_column,
};
use serde_json::{Value, json};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new("Status", "string", 0, "Status of the component conditions"),
    Column::new("Message", "string", 0, "Message of the component conditions"),
    Column::new("Error", "string", 0, "Error of the component conditions"),
];

/// Components, and the lease of each: a holder shows that the component is running.
const COMPONENTS: &[(&str, &str)] =
    &[("controller-manager", "kube-controller-manager"), ("etcd-0", ""), ("scheduler", "kube-scheduler")];

struct ComponentStatuses {
    /// Those that live in this process and take no lease.
    local: Vec<&'static str>,
}

fn component(local: &[&str], ctx: &Ctx<'_>, name: &str, lease: &str) -> Value {
    let leases = GroupResource::new("coordination.k8s.io", "leases");
    let held = lease.is_empty()
        || local.contains(&name)
        || ctx.api.get(&leases, "kube-system", lease).is_some_and(|l| is_fresh(&l, ctx.now));
    let condition = if held {
        json!({"type": "Healthy", "status": "True", "message": "ok"})
    } else {
        let error = format!("no holder has renewed the lease kube-system/{lease}");
        json!({"type": "Healthy", "status": "False", "error": error})
    };
    json!({"apiVersion": "v1", "kind": "ComponentStatus", "metadata": {"name": name}, "conditions": [condition]})
}

fn is_fresh(lease: &Value, now: jiff::Timestamp) -> bool {
    let spec = lease.at("spec");
    let renewed = spec.text("renewTime").parse::<jiff::Timestamp>();
    let seconds = spec.opt_int("leaseDurationSeconds").unwrap_or(15);
    !spec.text("holderIdentity").is_empty()
        && renewed.is_ok_and(|t| now.as_second() - t.as_second() <= seconds)
}

impl Hooks for ComponentStatuses {
    fn calls(&self) -> &dyn CallHooks {
        self
    }

    fn row(&self, _version: &str, object: &Value, _now: jiff::Timestamp) -> Vec<Value> {
        let Some(c) = conditions::find(object, "Healthy") else {
            return vec![name(object), "Unknown".into(), "".into(), "".into()];
        };
        let status = if c.text("status") == "True" { "Healthy" } else { "Unhealthy" };
        vec![name(object), status.into(), c.text("message").into(), c.text("error").into()]
    }
}

impl CallHooks for ComponentStatuses {
    fn call<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        request: CallRequest<'a>,
    ) -> BoxFuture<'a, Result<(u16, Value), Status>> {
        Box::pin(async move {
            let all = COMPONENTS.iter();
            match request.verb {
                Verb::Get => {
                    let gr = GroupResource::new("", "componentstatus");
                    let found = all.clone().find(|(n, _)| *n == ctx.name);
                    let (n, lease) = found.ok_or_else(|| Status::not_found(&gr, ctx.name))?;
                    Ok((200, component(&self.local, ctx, n, lease)))
                }
                Verb::List => {
                    let items: Vec<Value> =
                        all.map(|(n, lease)| component(&self.local, ctx, n, lease)).collect();
                    let list = json!({"apiVersion": "v1", "kind": "ComponentStatusList", "metadata": {}, "items": items});
                    Ok((200, list))
                }
                other => Err(Status::method_not_supported(
                    &GroupResource::new("", "componentstatuses"),
                    other.as_str(),
                )),
            }
        })
    }
}

/// The definition of ComponentStatuses.
pub fn def(deps: &Deps) -> ResourceDef {
    let mut def = ResourceDef::builtin(
        "",
        "v1",
        "ComponentStatus",
        "componentstatuses",
        Scope::Cluster,
        COLUMNS,
        ComponentStatuses { local: deps.components.clone() },
    )
    .short(&["cs"]);
    def.stored = false;
    def.verbs = &[Verb::Get, Verb::List];
    def.versions[0].deprecation = Some("v1 ComponentStatus is deprecated in v1.19+".into());
    def
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{TestContext, deps, row};
    use futures_util::FutureExt;

    fn show(fixture: &TestContext, deps: &Deps, component: &str) -> String {
        let name = json!({"metadata": {"name": component}});
        let request = CallRequest {
            verb: Verb::Get,
            body: Value::Null,
            object: None,
            query: &Default::default(),
            delete_options: None,
        };
        let def = def(deps);
        let ctx = fixture.ctx(&name, "", "v1");
        let answer = def.hooks.calls().call(&ctx, request).now_or_never().unwrap().unwrap().1;
        row(&def, &answer)
    }

    #[test]
    fn a_fresh_lease_is_health() {
        let fixture = TestContext::default();
        let lease = |renewed: &str| {
            json!({"metadata": {"name": "kube-scheduler", "namespace": "kube-system"},
            "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": renewed}})
        };
        let leases = GroupResource::new("coordination.k8s.io", "leases");
        assert_eq!(
            show(&fixture, &deps(), "scheduler"),
            "scheduler | Unhealthy |  | no holder has renewed the lease kube-system/kube-scheduler"
        );
        fixture.api.put(&leases, lease("2026-01-02T03:04:00.000000Z"));
        assert_eq!(show(&fixture, &deps(), "scheduler"), "scheduler | Healthy | ok | ");
    }

    #[test]
    fn a_component_of_this_process_needs_no_lease() {
        let deps = Deps { components: vec!["scheduler"], ..deps() };
        let fixture = TestContext::default();
        assert_eq!(show(&fixture, &deps, "scheduler"), "scheduler | Healthy | ok | ");
        assert!(show(&fixture, &deps, "controller-manager").contains("Unhealthy"));
    }
}
