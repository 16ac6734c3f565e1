//! Matching of requests by webhooks and policies: rules, selectors, and equivalent resources.
//!
//! Invariants:
//! - Rules come first and cost no look-up and no allocation unless they match; selectors follow.
//! - A resource is its own only match under `Exact`; under `Equivalent` every resource and version that shows the same
//!   objects counts, in the order of the rules.
//! - What webhooks and policies are configured by is never about itself, and they are never about reviews of access.
//!
//! Source: upstream's `plugin/webhook/predicates` and `plugin/policy/matching` of k8s.io/apiserver.

use kaji_engine::{Attributes, Operation, decode};
use kaji_meta::{GroupResource, GroupVersionKind, GroupVersionResource, Status, labels::Selector};
use kaji_resource::{ResourceDef, SubresourceKind, VersionDef};
use serde_json::Value;
use std::sync::Arc;

/// Kinds that configure admission. Requests about them meet no webhook and no policy.
const EXEMPT: [&str; 6] = [
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "MutatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
];

/// Whether a request is about the configuration of admission itself.
pub(crate) fn exempt(a: &Attributes<'_>) -> bool {
    a.kind.group == "admissionregistration.k8s.io" && EXEMPT.contains(&a.kind.kind.as_str())
}

/// Reviews, of which nothing is stored: refusing these may break the cluster. Source: `exclusion.Excluded`.
const EXCLUDED: [(&str, &str); 6] = [
    ("authentication.k8s.io", "selfsubjectreviews"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
];

/// Whether a request is a review of an authentication or authorization, which meets no webhook and no policy.
pub(crate) fn excluded(a: &Attributes<'_>) -> bool {
    EXCLUDED.contains(&(a.resource.group.as_str(), a.resource.resource.as_str()))
}

/// A list of names of which `*` is all.
#[derive(Clone, Debug)]
enum Names {
    All,
    These(Vec<String>),
}

impl Names {
    fn of(list: &Value) -> Names {
        let names: Vec<String> = strings(list).map(str::to_owned).collect();
        if names.iter().any(|n| n == "*") { Names::All } else { Names::These(names) }
    }

    fn has(&self, name: &str) -> bool {
        match self {
            Names::All => true,
            Names::These(names) => names.iter().any(|n| n == name),
        }
    }
}

fn strings(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Any,
    Cluster,
    Namespaced,
    /// Something that is no scope.
    None,
}

/// A `RuleWithOperations`, or one with names.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    operations: Names,
    groups: Names,
    versions: Names,
    /// Resource and subresource.
    resources: Vec<(String, String)>,
    scope: Scope,
    /// Empty for all.
    names: Vec<String>,
}

impl Rule {
    /// Reads one from its JSON form, which was validated.
    pub(crate) fn parse(rule: &Value) -> Rule {
        let pair = |text: &str| {
            let (resource, sub) = text.split_once('/').unwrap_or((text, ""));
            (resource.to_owned(), sub.to_owned())
        };
        Rule {
            operations: Names::of(&rule["operations"]),
            groups: Names::of(&rule["apiGroups"]),
            versions: Names::of(&rule["apiVersions"]),
            resources: strings(&rule["resources"]).map(pair).collect(),
            scope: match rule["scope"].as_str() {
                None | Some("*") => Scope::Any,
                Some("Cluster") => Scope::Cluster,
                Some("Namespaced") => Scope::Namespaced,
                Some(_) => Scope::None,
            },
            names: strings(&rule["resourceNames"]).map(str::to_owned).collect(),
        }
    }

    /// All rules of a list.
    pub(crate) fn list(rules: &Value) -> Vec<Rule> {
        rules.as_array().into_iter().flatten().map(Rule::parse).collect()
    }

    /// Whether the rule is about a request, were it for this resource.
    fn matches(&self, a: &Attributes<'_>, (group, version, resource): (&str, &str, &str)) -> bool {
        self.operations.has(a.operation.as_str())
            && self.groups.has(group)
            && self.versions.has(version)
            && self
                .resources
                .iter()
                .any(|(r, sub)| (r == "*" || r == resource) && (sub == "*" || sub == a.subresource))
            && self.in_scope(a, (group, version, resource))
            && (self.names.is_empty() || self.names.iter().any(|n| n == a.name))
    }

    fn in_scope(&self, a: &Attributes<'_>, resource: (&str, &str, &str)) -> bool {
        // Of a namespace, the request's namespace is its own name.
        let cluster = resource == ("", "v1", "namespaces") || a.namespace.is_empty();
        match self.scope {
            Scope::Any => true,
            Scope::Cluster => cluster,
            Scope::Namespaced => !cluster,
            Scope::None => false,
        }
    }
}

/// What a rule took a request for: the resource and kind in which webhooks and policies see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Matched {
    /// The resource, perhaps of another version or group than the request's.
    pub resource: GroupVersionResource,
    /// Its kind; of a subresource, the kind of that.
    pub kind: GroupVersionKind,
}

/// The first rule that is about a request.
pub(crate) fn by_rules(rules: &[Rule], equivalent: bool, a: &Attributes<'_>) -> Option<Matched> {
    let own = (a.resource.group.as_str(), a.resource.version.as_str(), a.resource.resource.as_str());
    if rules.iter().any(|rule| rule.matches(a, own)) {
        return Some(Matched { resource: a.resource.clone(), kind: a.kind.clone() });
    }
    if !equivalent || rules.is_empty() {
        return None;
    }
    // Most resources have one version and share no storage.
    let others = a.api.sharing(a.resource.group.as_str(), a.resource.resource.as_str());
    if others.len() < 2 && a.def.versions.len() < 2 {
        return None;
    }
    let defs: Vec<&ResourceDef> =
        if others.is_empty() { vec![a.def] } else { others.iter().map(AsRef::as_ref).collect() };
    for rule in rules {
        for (def, version) in defs.iter().flat_map(|def| def.versions.iter().map(move |v| (*def, v))) {
            let resource = (def.group.as_ref(), version.name.as_ref(), def.plural.as_ref());
            // Custom resources can be converted to versions that are not served, too.
            let known = version.served || decode::is_custom(&version.schema);
            if resource == own || !known || !rule.matches(a, resource) {
                continue;
            }
            if let Some(kind) = kind_of(def, version, a.subresource) {
                let (group, version, resource) = resource;
                return Some(Matched { resource: GroupVersionResource::new(group, version, resource), kind });
            }
        }
    }
    None
}

/// The kind of a resource or of its subresource; `None` if the version has no such subresource.
fn kind_of(def: &ResourceDef, version: &VersionDef, subresource: &str) -> Option<GroupVersionKind> {
    if subresource.is_empty() {
        return Some(def.gvk(&version.name));
    }
    Some(match &version.subresource(subresource)?.kind {
        SubresourceKind::Status | SubresourceKind::Update => def.gvk(&version.name),
        SubresourceKind::Scale(_) => GroupVersionKind::new("autoscaling", "v1", "Scale"),
        SubresourceKind::Call { kind } | SubresourceKind::Connect { kind, .. } => kind.clone(),
    })
}

/// The selectors of a webhook or policy.
#[derive(Clone, Debug)]
pub(crate) struct Selectors {
    namespace: Result<Selector, String>,
    object: Result<Selector, String>,
}

impl Selectors {
    /// Of a value with `namespaceSelector` and `objectSelector`, defaulted: absent ones select nothing.
    pub(crate) fn parse(owner: &Value) -> Selectors {
        Selectors {
            namespace: Selector::from_label_selector(&owner["namespaceSelector"]),
            object: Selector::from_label_selector(&owner["objectSelector"]),
        }
    }

    /// Whether a request is selected, by the objects as they are now (mutating plugins see what others did to them).
    ///
    /// # Errors
    /// 404 for a namespace that does not exist, 500 for a selector that is none.
    pub(crate) async fn select(
        &self,
        a: &Attributes<'_>,
        new: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<bool, Status> {
        let object = match &self.object {
            Ok(selector) if selector.is_everything() => Ok(true),
            Ok(selector) => {
                let matches = |o: &Value| o.get("metadata").is_some() && selector.matches_object(o);
                Ok(new.is_some_and(matches) || old.is_some_and(matches))
            }
            Err(error) => Err(Status::internal(error)),
        };
        if let Ok(false) = object {
            return Ok(false);
        }
        Ok(self.select_namespace(a, new).await? && object?)
    }

    async fn select_namespace(&self, a: &Attributes<'_>, new: Option<&Value>) -> Result<bool, Status> {
        let namespaces = a.resource.resource == "namespaces";
        if a.namespace.is_empty() && !namespaces {
            return Ok(true);
        }
        let selector = self.namespace.as_ref().map_err(Status::internal)?;
        if selector.is_everything() {
            return Ok(true);
        }
        // A namespace that is being written is there as the object only.
        if namespaces
            && a.subresource.is_empty()
            && matches!(a.operation, Operation::Create | Operation::Update)
        {
            return Ok(selector.matches_object(new.unwrap_or(&Value::Null)));
        }
        let found = namespace_of(a).await?;
        found
            .map(|namespace| selector.matches_object(&namespace))
            .ok_or_else(|| Status::not_found(&GroupResource::new("", "namespaces"), a.namespace))
    }
}

/// `MatchResources` of a policy or its binding.
#[derive(Clone, Debug)]
pub(crate) struct MatchResources {
    rules: Vec<Rule>,
    exclude: Vec<Rule>,
    equivalent: bool,
    selectors: Selectors,
}

impl MatchResources {
    /// Reads one, defaulted: `matchConstraints` of a policy, `matchResources` of a binding.
    pub(crate) fn parse(value: &Value) -> MatchResources {
        MatchResources {
            rules: Rule::list(&value["resourceRules"]),
            exclude: Rule::list(&value["excludeResourceRules"]),
            equivalent: value["matchPolicy"] == "Equivalent",
            selectors: Selectors::parse(value),
        }
    }

    /// What the rules take a request for. Costs no look-up of other objects. No rules match everything.
    pub(crate) fn by_rules(&self, a: &Attributes<'_>) -> Option<Matched> {
        let matched = match self.rules.is_empty() {
            true => Matched { resource: a.resource.clone(), kind: a.kind.clone() },
            false => by_rules(&self.rules, self.equivalent, a)?,
        };
        by_rules(&self.exclude, self.equivalent, a).is_none().then_some(matched)
    }

    /// What a request is taken for, if it is matched.
    ///
    /// # Errors
    /// As [`Selectors::select`].
    pub(crate) async fn matches(
        &self,
        a: &Attributes<'_>,
        new: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<Option<Matched>, Status> {
        let Some(matched) = self.by_rules(a) else { return Ok(None) };
        Ok(self.selectors.select(a, new, old).await?.then_some(matched))
    }
}

/// The namespace of a request as an object, for callers that need more of it than its labels.
///
/// # Errors
/// 404 when it does not exist.
pub(crate) async fn namespace_of(a: &Attributes<'_>) -> Result<Option<Arc<Value>>, Status> {
    if a.namespace.is_empty() {
        return Ok(None);
    }
    let resource = GroupResource::new("", "namespaces");
    let found = crate::get_expected(a.api, &resource, "", a.namespace).await?;
    found.map(Some).ok_or_else(|| Status::not_found(&resource, a.namespace))
}

#[cfg(test)]
mod tests;
