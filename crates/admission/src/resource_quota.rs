//! `ResourceQuota`: charges an object to its namespace's quotas before it is written, and refuses what exceeds them.
//!
//! Invariants:
//! - A charge and the object it is for are one transaction: no failure in between leaves one without the other, and
//!   two writers never spend the same amount.
//! - Charges of one namespace wait for each other in memory, so that they need not try again; while one waits for its
//!   turn it holds nothing. The holder of the turn creates nothing else in a namespace with quotas.
//! - Only the quota controller gives back, from what it counts.

use crate::config::Configuration;
use kaji_engine::{Admission, Attributes, ExtraUpdate, Operation, Phases};
use kaji_meta::{GroupResource, Path, Status, field, object};
use kaji_quota::{
    Change, CheckError, Context, Evaluator, Limited, LimitedResource, Usage, charged_to_pod, check, pod_of,
};
use kaji_resource::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::Arc,
};
use tokio::sync::Mutex;

/// Namespaces share this many turns.
const TURNS: usize = 256;

/// Group, versions and kind of the configuration.
const KIND: (&str, &[&str], &str) = ("apiserver.config.k8s.io", &["v1"], "ResourceQuotaConfiguration");
/// The same of what it was called before.
const FORMER_KIND: (&str, &[&str], &str) =
    ("resourcequota.admission.k8s.io", &["v1beta1", "v1alpha1"], "Configuration");

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    #[serde(default)]
    limited_resources: Option<Vec<Entry>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Entry {
    api_group: String,
    resource: String,
    match_contains: Option<Vec<String>>,
    match_scopes: Option<Vec<Scope>>,
}

/// A `ScopedResourceSelectorRequirement`.
#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Scope {
    scope_name: String,
    operator: String,
    values: Option<Vec<String>>,
}

fn limited_resources(value: Value) -> Result<Vec<LimitedResource>, String> {
    let file: File = serde_json::from_value(value).map_err(|e| e.to_string())?;
    let (path, mut errors, mut limited) = (Path::new("limitedResources"), vec![], vec![]);
    for (i, entry) in file.limited_resources.into_iter().flatten().enumerate() {
        if entry.resource.is_empty() {
            errors.push(field::Error::required(&path.index(i).child("resource"), ""));
        }
        let scopes = entry.match_scopes.into_iter().flatten();
        limited.push(LimitedResource {
            resource: GroupResource::new(entry.api_group, entry.resource),
            match_contains: entry.match_contains.unwrap_or_default(),
            match_scopes: scopes.map(|scope| json!(scope)).collect(),
        });
    }
    if errors.is_empty() { Ok(limited) } else { Err(field::aggregate(&errors)) }
}

/// The plugin.
pub(super) struct ResourceQuota {
    turns: Vec<Arc<Mutex<()>>>,
    /// What may be consumed only where a quota limits it.
    limited: Vec<LimitedResource>,
}

impl ResourceQuota {
    /// The plugin with its configuration.
    ///
    /// # Errors
    /// What is wrong with that, in words.
    pub(super) fn configured(file: Option<Configuration<'_>>) -> Result<Self, String> {
        let value = file.map(|file| {
            let former = file.group() == FORMER_KIND.0;
            file.of_kind(if former { FORMER_KIND } else { KIND })
        });
        let limited = value.transpose()?.map(limited_resources).transpose()?.unwrap_or_default();
        Ok(ResourceQuota { turns: (0..TURNS).map(|_| Arc::default()).collect(), limited })
    }

    fn turn(&self, namespace: &str) -> Arc<Mutex<()>> {
        let mut hasher = DefaultHasher::new();
        namespace.hash(&mut hasher);
        self.turns[(hasher.finish() % TURNS as u64) as usize].clone()
    }

    async fn charge(&self, a: &Attributes<'_>, evaluator: &Evaluator) -> Result<(), Status> {
        let Some(new) = a.new_object() else { return Ok(()) };
        let quotas = GroupResource::new("", "resourcequotas");
        crate::read_own_writes(a.api).await?;
        if self.limited.is_empty() && !a.api.any(&quotas, Some(a.namespace), &|_| true) {
            return Ok(());
        }
        let turn = self.turn(a.namespace).lock_owned().await;
        // As those before us have left them.
        a.api.sync().await?;
        let quotas_here = a.api.list(&quotas, Some(a.namespace));
        let extended = extended_resources(a, evaluator);
        let charged_to_pods = charged_to_pods(a, evaluator, new);
        let cx = Context { now: a.now, extended_resources: &extended, charged_to_pods: &charged_to_pods };
        let change = Change { subresource: a.subresource, old: a.old, new };
        let limited = Limited { resource: &a.group_resource(), entries: &self.limited };
        let charged = check(&quotas_here, evaluator, change, &cx, limited).map_err(|error| match error {
            CheckError::Forbidden(text) => a.forbidden(text),
            CheckError::UncoveredScopes(_) => crate::plain_error(error.to_string()),
        })?;
        if a.dry_run || charged.is_empty() {
            return Ok(());
        }
        for (index, used) in charged {
            let mut quota = (*quotas_here[index]).clone();
            object::set_at(&mut quota, &["status", "used"], used);
            a.extras.update(ExtraUpdate { resource: quotas.clone(), object: quota });
        }
        a.extras.hold(turn);
        Ok(())
    }
}

/// The extended resources that device classes stand for; for resource claims alone.
fn extended_resources(a: &Attributes<'_>, evaluator: &Evaluator) -> BTreeMap<String, String> {
    if *evaluator != Evaluator::ResourceClaims {
        return BTreeMap::new();
    }
    let classes = a.api.list(&GroupResource::new("resource.k8s.io", "deviceclasses"), None);
    let named = |class: &Arc<Value>| {
        let resource = object::str_at(class, &["spec", "extendedResourceName"]);
        (!resource.is_empty()).then(|| (object::name(class).to_owned(), resource.to_owned()))
    };
    classes.iter().filter_map(named).collect()
}

/// What the pod is charged that a claim was made for, by the claim's name.
fn charged_to_pods(a: &Attributes<'_>, evaluator: &Evaluator, claim: &Value) -> BTreeMap<String, Usage> {
    let pod = (*evaluator == Evaluator::ResourceClaims).then(|| pod_of(claim)).flatten();
    let pod = pod.and_then(|(name, _)| a.api.get(&GroupResource::new("", "pods"), a.namespace, name));
    let Some(pod) = pod else { return BTreeMap::new() };
    let claims = a.api.list(&GroupResource::new("resource.k8s.io", "resourceclaims"), Some(a.namespace));
    let usage = charged_to_pod(claim, &pod, claims.iter().map(|claim| &**claim), a.now);
    usage.map(|usage| (object::name(claim).to_owned(), usage)).into_iter().collect()
}

impl Admission for ResourceQuota {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        let _ = (group, resource);
        Phases::VALIDATING.when(matches!(operation, Operation::Create | Operation::Update))
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        // A namespace is admitted as if it were in itself, but no quota can be there before it.
        a.def.namespaced()
            && !a.namespace.is_empty()
            && a.def.stored
            && matches!(a.subresource, "" | "status" | "resize")
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let Some(evaluator) = Evaluator::of(&a.group_resource()) else { return Ok(()) };
            let Some(new) = a.new_object() else { return Ok(()) };
            if !evaluator.handles(a.subresource, a.old, new) {
                return Ok(());
            }
            self.charge(a, &evaluator).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::Request;
    use expect_test::expect;
    use kaji_resource::Scope;

    fn configured(value: Value) -> Result<ResourceQuota, String> {
        ResourceQuota::configured(Some(Configuration::of(value)))
    }

    #[test]
    fn reads_the_configuration_in_all_versions() {
        let file = |version: &str, kind: &str, limited: Value| {
            let value = json!({"apiVersion": version, "kind": kind, "limitedResources": limited});
            configured(value).map_or_else(|error| error, |plugin| format!("{:?}", plugin.limited))
        };
        let one = json!([{"apiGroup": "g", "resource": "r", "matchContains": ["x"],
            "matchScopes": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}]);
        let mut out = vec![
            file("apiserver.config.k8s.io/v1", "ResourceQuotaConfiguration", one),
            file("resourcequota.admission.k8s.io/v1beta1", "Configuration", json!([{"resource": "r"}])),
            file("resourcequota.admission.k8s.io/v1alpha1", "Configuration", Value::Null),
        ];
        out.push(file("apiserver.config.k8s.io/v1", "Configuration", json!([])));
        out.push(file("apiserver.config.k8s.io/v1", "ResourceQuotaConfiguration", json!([{}])));
        let unknown = json!([{"resource": "r", "matchContain": []}]);
        out.push(file("apiserver.config.k8s.io/v1", "ResourceQuotaConfiguration", unknown));
        assert!(ResourceQuota::configured(None).unwrap().limited.is_empty());
        expect![[r#"
            [LimitedResource { resource: GroupResource { group: "g", resource: "r" }, match_contains: ["x"], match_scopes: [Object {"operator": String("In"), "scopeName": String("PriorityClass"), "values": Array [String("high")]}] }]
            [LimitedResource { resource: GroupResource { group: "", resource: "r" }, match_contains: [], match_scopes: [] }]
            []
            no kind "Configuration" is registered for version "apiserver.config.k8s.io/v1"
            limitedResources[0].resource: Required value
            unknown field `matchContain`, expected one of `apiGroup`, `resource`, `matchContains`, `matchScopes`"#]].assert_eq(&out.join("\n"));
    }

    #[tokio::test]
    async fn refuses_limited_resources_without_a_quota() {
        let plugin = |entry: Value| {
            let kind = "ResourceQuotaConfiguration";
            let file = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": kind, "limitedResources": [entry]});
            configured(file).unwrap()
        };
        let scope = json!({"scopeName": "PriorityClass", "operator": "In", "values": ["high"]});
        let mut out = String::new();
        for plugin in [
            plugin(json!({"resource": "pods", "matchContains": ["cpu"]})),
            plugin(json!({"resource": "pods", "matchScopes": [scope]})),
            plugin(json!({"resource": "services", "matchContains": ["cpu"]})),
        ] {
            let mut request = Request::of("", "v1", "Pod", "pods", Scope::Namespaced);
            request.object = Some(
                json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"priorityClassName": "high",
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}),
            );
            let result = request.with(async |a| plugin.validate(a).await).await;
            out += &result
                .map_or_else(|s| format!("{} {:?} {}\n", s.code, s.reason, s.message), |()| "taken\n".into());
        }
        expect![[r#"
            403 Forbidden pods "c" is forbidden: insufficient quota to consume: cpu,requests.cpu
            500 Unknown insufficient quota to match these scopes: [{PriorityClass In [high]}]
            taken
        "#]]
        .assert_eq(&out);
    }
}
