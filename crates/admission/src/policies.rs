//! Admission policies: what validating and mutating ones share. A policy acts through bindings; each gives it parameters.
//!
//! Invariants:
//! - A policy or binding counts from the moment that its write is acknowledged: the index is compared with the caches
//!   before each request, which costs two numbers while nothing changes.
//! - Expressions are compiled once for each generation of a policy.
//! - Without a policy that is about a request, nothing is allocated for it.
//!
//! Source: apiserver `admission/plugin/policy/generic`.

mod metrics;
pub(crate) mod params;

pub use metrics::PolicyMetrics;

use crate::{
    match_conditions::MatchConditions,
    matching::{MatchResources, Matched, excluded},
};
use kaji_cel::{
    Env,
    admission::{self, Setting},
};
use kaji_engine::Attributes;
use kaji_meta::{GroupResource, GroupVersionKind, Status, object};
use kaji_resource::Api;
use params::ParamRef;
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

pub(crate) const GROUP: &str = "admissionregistration.k8s.io";
/// Requests about these meet no policy. Source: `generic.admissionResources`.
const EXEMPT: [&str; 4] = [
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
];

/// Whether policies may be about a request at all.
fn concerned(a: &Attributes<'_>) -> bool {
    let exempt = a.resource.group == GROUP && EXEMPT.contains(&a.resource.resource.as_str());
    !exempt && !excluded(a)
}

/// What a kind of policies makes of a policy.
pub(crate) trait Evaluator: Send + Sync + 'static {
    /// The plurals of policies and their bindings.
    const RESOURCES: (&'static str, &'static str);

    /// Compiles a policy; what does not compile fails when it is evaluated.
    fn compile(policy: &Value) -> Self;
}

/// What the expressions of a policy are compiled in, and its match conditions.
pub(crate) fn environment(spec: &Value) -> (Env, MatchConditions) {
    let mut env = admission::env(Setting {
        params: spec["paramKind"].is_object(),
        authorizer: true,
        variables: true,
        making_objects: false,
    });
    for variable in spec["variables"].as_array().into_iter().flatten() {
        let text = |key: &str| variable[key].as_str().unwrap_or("");
        // What does not compile fails where it is used.
        let _ = admission::name(&mut env, text("name"), text("expression"));
    }
    let conditions = MatchConditions::new(&env, &spec["matchConditions"], spec["failurePolicy"] != "Ignore");
    (env, conditions)
}

/// A policy with everything that binds it.
pub(crate) struct Hook<E> {
    pub name: String,
    version: (String, i64),
    constraints: MatchResources,
    pub params: Option<GroupVersionKind>,
    /// Errors refuse the request.
    pub fail: bool,
    pub evaluator: Arc<E>,
    pub bindings: Vec<Binding>,
}

/// A binding of a policy.
pub(crate) struct Binding {
    pub name: String,
    matches: Option<MatchResources>,
    pub params: Option<ParamRef>,
    /// `validationActions`
    pub actions: Vec<String>,
}

impl Binding {
    fn parse(binding: &Value) -> Binding {
        let spec = &binding["spec"];
        let actions = spec["validationActions"].as_array().into_iter().flatten();
        Binding {
            name: object::name(binding).to_owned(),
            matches: spec["matchResources"]
                .is_object()
                .then(|| MatchResources::parse(&spec["matchResources"])),
            params: spec["paramRef"].is_object().then(|| ParamRef::parse(&spec["paramRef"])),
            actions: actions.filter_map(Value::as_str).map(str::to_owned).collect(),
        }
    }

    /// Whether the binding is about a request.
    pub(crate) async fn matches(&self, a: &Attributes<'_>) -> Result<bool, Status> {
        match &self.matches {
            None => Ok(true),
            Some(matches) => Ok(matches.matches(a, a.new_object(), a.old).await?.is_some()),
        }
    }
}

impl<E> Hook<E> {
    /// What the policy takes a request for.
    pub(crate) async fn matches(&self, a: &Attributes<'_>) -> Result<Option<Matched>, Status> {
        self.constraints.matches(a, a.new_object(), a.old).await
    }

    /// Whether the policy may be about a request; looks at no other object.
    fn concerns(&self, a: &Attributes<'_>) -> bool {
        self.constraints.by_rules(a).is_some()
    }
}

/// All policies of a kind that have bindings, by name.
type Hooks<E> = Arc<Vec<Arc<Hook<E>>>>;

struct Index<E> {
    /// Of which changes of policies and bindings this was made.
    seen: (u64, u64),
    hooks: Hooks<E>,
}

/// The policies of one kind as the caches have them.
pub(crate) struct Policies<E> {
    policies: GroupResource,
    bindings: GroupResource,
    index: RwLock<Index<E>>,
    /// Held while the index is made anew.
    making: Mutex<()>,
}

impl<E: Evaluator> Policies<E> {
    pub(crate) fn new() -> Policies<E> {
        let (policies, bindings) = E::RESOURCES;
        Policies {
            policies: GroupResource::new(GROUP, policies),
            bindings: GroupResource::new(GROUP, bindings),
            index: RwLock::new(Index { seen: (0, 0), hooks: Arc::default() }),
            making: Mutex::new(()),
        }
    }

    /// The policies as they are now.
    pub(crate) fn hooks(&self, api: &dyn Api) -> Hooks<E> {
        let current = |now: (u64, u64)| {
            let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
            (index.seen == now).then(|| index.hooks.clone())
        };
        let now = (api.changed(&self.policies), api.changed(&self.bindings));
        if let Some(hooks) = current(now) {
            return hooks;
        }
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        // Asked before objects are read: what changes meanwhile is noticed by the next request.
        let now = (api.changed(&self.policies), api.changed(&self.bindings));
        if let Some(hooks) = current(now) {
            return hooks;
        }
        let old = self.index.read().unwrap_or_else(PoisonError::into_inner).hooks.clone();
        let hooks = Arc::new(self.make(api, &old));
        *self.index.write().unwrap_or_else(PoisonError::into_inner) =
            Index { seen: now, hooks: hooks.clone() };
        hooks
    }

    fn make(&self, api: &dyn Api, old: &[Arc<Hook<E>>]) -> Vec<Arc<Hook<E>>> {
        let mut bindings = api.list(&self.bindings, None);
        bindings.sort_by(|a, b| object::name(a).cmp(object::name(b)));
        let mut hooks = vec![];
        for policy in api.list(&self.policies, None) {
            let name = object::name(&policy);
            let bound: Vec<Binding> = bindings
                .iter()
                .filter(|b| b["spec"]["policyName"] == name)
                .map(|binding| Binding::parse(binding))
                .collect();
            if bound.is_empty() {
                continue;
            }
            let version = (object::uid(&policy).to_owned(), object::generation(&policy));
            let known = old.iter().find(|hook| hook.name == name && hook.version == version);
            let spec = &policy["spec"];
            let evaluator =
                known.map_or_else(|| Arc::new(E::compile(&policy)), |hook| hook.evaluator.clone());
            hooks.push(Arc::new(Hook {
                name: name.to_owned(),
                version,
                constraints: MatchResources::parse(&spec["matchConstraints"]),
                params: params::kind(&spec["paramKind"]),
                fail: spec["failurePolicy"] != "Ignore",
                evaluator,
                bindings: bound,
            }));
        }
        hooks.sort_by(|a, b| a.name.cmp(&b.name));
        hooks
    }

    /// Whether any policy may be about a request.
    pub(crate) fn concerned(&self, a: &Attributes<'_>) -> bool {
        let hooks = self.hooks(a.api);
        !hooks.is_empty() && !a.internal && concerned(a) && hooks.iter().any(|hook| hook.concerns(a))
    }
}

/// The namespace that expressions see: none for cluster-scoped objects, nor for namespaces themselves.
///
/// # Errors
/// 404 if it does not exist.
pub(crate) async fn namespace(a: &Attributes<'_>) -> Result<Option<Arc<Value>>, Status> {
    let itself = a.kind.group.is_empty() && a.kind.version == "v1" && a.kind.kind == "Namespace";
    if itself { Ok(None) } else { crate::matching::namespace_of(a).await }
}

#[cfg(test)]
mod tests;
