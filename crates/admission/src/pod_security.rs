//! `PodSecurity`: the Pod Security Standards, by namespaces' labels. Source: Kubernetes' page of that name.
//!
//! Invariants:
//! - Pods are refused by the enforced level only; workloads are never refused, only warned about.
//! - What exempts (a user, a namespace, a runtime class) does so in all modes; the audit log has the reason.
//! - Checks are pure; texts list them in the order of their names, the baseline first.

mod baseline;
mod checks;
mod config;
mod metrics;
mod policy;
mod restricted;
#[cfg(test)]
mod tests;

use crate::{
    config::Configuration,
    pod_spec::{LISTS, containers},
};
use checks::{Found, evaluate};
pub(crate) use config::Config;
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{ErrorList, GroupKind, GroupResource, Status, field, object, text::quote};
use kaji_resource::BoxFuture;
use metrics::Mode;
pub use metrics::PodSecurityMetrics;
use policy::{Level, LevelVersion, PREFIX, Policy};
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

/// How many of a namespace's pods are looked at when its labels change.
const MOST_PODS: usize = 3000;
/// Subresources of pods that take a body other than a pod, or change no spec.
const IGNORED: [&str; 8] = ["exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status"];

/// The plugin.
pub(crate) struct PodSecurity {
    config: Config,
    /// For namespaces without labels, which are most.
    nothing: serde_json::Map<String, Value>,
    metrics: Arc<PodSecurityMetrics>,
}

impl Admission for PodSecurity {
    fn name(&self) -> &'static str {
        "PodSecurity"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        let _ = (group, resource);
        Phases::VALIDATING.when(matches!(operation, Operation::Create | Operation::Update))
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        match (a.resource.group.as_str(), a.resource.resource.as_str()) {
            ("", "pods") => !IGNORED.contains(&a.subresource),
            ("", "namespaces") => a.subresource.is_empty(),
            _ => a.def.pod_template.is_some() && a.subresource.is_empty(),
        }
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            match a.resource.resource.as_str() {
                "namespaces" => self.namespace(a).await,
                "pods" => self.pod(a).await,
                _ => self.workload(a).await,
            }
        })
    }
}

/// Adds an audit annotation.
fn annotate(a: &Attributes<'_>, key: &str, value: impl Into<String>) {
    a.annotations.add(format!("{PREFIX}{key}"), value);
}

impl PodSecurity {
    /// With its part of the `AdmissionConfiguration`.
    ///
    /// # Errors
    /// What is wrong with that, in words.
    pub(crate) fn configured(
        file: Option<Configuration<'_>>,
        metrics: Arc<PodSecurityMetrics>,
    ) -> Result<Self, String> {
        let value = file.map(|file| file.of_kind(Config::KIND)).transpose()?;
        let config = value.map(Config::parse).transpose()?.unwrap_or_default();
        Ok(PodSecurity { config, nothing: serde_json::Map::new(), metrics })
    }

    fn policy(&self, namespace: &Value) -> (Policy, ErrorList) {
        let labels = object::obj_at(namespace, &["metadata", "labels"]).unwrap_or(&self.nothing);
        Policy::of(labels, &self.config.defaults)
    }

    /// The policy of the namespace that a write is in; `None` if there is no such namespace.
    async fn policy_of(&self, a: &Attributes<'_>) -> Result<Option<(Policy, ErrorList)>, Status> {
        let namespaces = GroupResource::new("", "namespaces");
        let found = crate::get_expected(a.api, &namespaces, "", a.namespace).await?;
        Ok(found.map(|ns| self.policy(&ns)))
    }

    /// Whether the user or the namespace is exempt.
    fn exempts(&self, a: &Attributes<'_>) -> bool {
        let why = if self.config.exempts_namespace(a.namespace) {
            "namespace"
        } else if self.config.exempts_user(&a.user.name) {
            "user"
        } else {
            return false;
        };
        annotate(a, "exempt", why);
        self.metrics.exempted(a);
        true
    }

    /// Labels must make sense, and existing pods may be warned about.
    async fn namespace(&self, a: &Attributes<'_>) -> Result<(), Status> {
        let Some(new) = a.new_object() else { return Ok(()) };
        let (policy, errors) = self.policy(new);
        let invalid = || Status::invalid(&GroupKind::new("", "Namespace"), a.name, &errors);
        let exempt = self.config.exempts_namespace(a.namespace);
        let ignored = || exempt_warning(object::name(new), &policy, &self.config.defaults, new);
        let Some(old) = a.old else {
            if !errors.is_empty() {
                return Err(invalid());
            }
            exempt.then(ignored).flatten().into_iter().for_each(|w| a.warn(w));
            return Ok(());
        };
        let (old_policy, old_errors) = self.policy(old);
        if !errors.is_empty() && errors != old_errors {
            return Err(invalid());
        }
        let (new, old) = (policy.enforce, old_policy.enforce);
        let relaxed = new.version == old.version && new.level <= old.level;
        if new == old || new.level == Level::Privileged || relaxed {
            return Ok(());
        }
        if exempt {
            ignored().into_iter().for_each(|w| a.warn(w));
            return Ok(());
        }
        a.api.sync().await?;
        let mut pods = a.api.list(&GroupResource::new("", "pods"), Some(a.name));
        pods.retain(|pod| !self.config.exempts_class_of(pod));
        existing(a.name, new, &pods).into_iter().for_each(|w| a.warn(w));
        Ok(())
    }

    async fn pod(&self, a: &Attributes<'_>) -> Result<(), Status> {
        if self.exempts(a) {
            return Ok(());
        }
        let Some((policy, errors)) = self.policy_of(a).await? else {
            self.metrics.failed(a, true);
            let text = format!("failed to lookup namespace {}", quote(a.namespace));
            annotate(
                a,
                "error",
                format!("Internal error occurred: {text}: namespaces {} not found", quote(a.namespace)),
            );
            return Err(Status::internal(text));
        };
        if errors.is_empty() && policy.fully_privileged() {
            annotate(a, "enforce-policy", Policy::default().enforce.to_string());
            self.metrics.evaluated(a, Mode::Enforce, policy.enforce, true);
            return Ok(());
        }
        match a.new_object() {
            Some(pod) if a.old.is_none_or(|old| significant(pod, old)) => {
                self.evaluate_pod(a, &policy, &errors, pod, true)
            }
            _ => Ok(()),
        }
    }

    async fn workload(&self, a: &Attributes<'_>) -> Result<(), Status> {
        if self.exempts(a) {
            return Ok(());
        }
        let Some((policy, errors)) = self.policy_of(a).await? else {
            self.metrics.failed(a, true);
            let name = quote(a.namespace);
            annotate(a, "error", format!("failed to lookup namespace {name}: namespaces {name} not found"));
            return Ok(());
        };
        let open = [policy.warn, policy.audit].iter().all(|m| m.level == Level::Privileged);
        if errors.is_empty() && open {
            return Ok(());
        }
        let path = a.def.pod_template.unwrap_or_default();
        match a.new_object().and_then(|o| object::at(o, path)).filter(|t| t.is_object()) {
            Some(template) => self.evaluate_pod(a, &policy, &errors, template, false),
            None => Ok(()),
        }
    }

    /// Judges a pod or a template in all modes.
    fn evaluate_pod(
        &self,
        a: &Attributes<'_>,
        policy: &Policy,
        errors: &ErrorList,
        pod: &Value,
        enforce: bool,
    ) -> Result<(), Status> {
        if self.config.exempts_class_of(pod) {
            annotate(a, "exempt", "runtimeClass");
            self.metrics.exempted(a);
            return Ok(());
        }
        if !errors.is_empty() {
            annotate(a, "error", format!("Failed to parse policy: {}", field::aggregate(errors)));
            self.metrics.failed(a, false);
        }
        if policy.audit.level != Level::Privileged
            && let Some(text) = violation("would violate", policy.audit, pod)
        {
            annotate(a, "audit-violations", text);
            self.metrics.evaluated(a, Mode::Audit, policy.audit, false);
        }
        if enforce {
            annotate(a, "enforce-policy", policy.enforce.to_string());
            let violation = violation("violates", policy.enforce, pod);
            self.metrics.evaluated(a, Mode::Enforce, policy.enforce, violation.is_none());
            if let Some(text) = violation {
                return Err(Status::forbidden(&a.group_resource(), a.name, text));
            }
        }
        // A refused request needs no warning.
        if let Some(text) = violation("would violate", policy.warn, pod) {
            a.warn(text);
            self.metrics.evaluated(a, Mode::Warn, policy.warn, false);
        }
        Ok(())
    }
}

/// `violates PodSecurity "baseline:latest": hostPort (container "c" uses hostPort 80), privileged (…)`
fn violation(verb: &str, level: LevelVersion, pod: &Value) -> Option<String> {
    let found = evaluate(level, pod);
    let level = quote(&level.to_string());
    (!found.is_empty()).then(|| format!("{verb} PodSecurity {level}: {}", detail(&found)))
}

/// The warning for a namespace that is exempt and has labels nevertheless.
fn exempt_warning(name: &str, policy: &Policy, defaults: &Policy, namespace: &Value) -> Option<String> {
    if policy.fully_privileged() || policy.equivalent(defaults) {
        return None;
    }
    let says = |label: String| object::label(namespace, &label).is_some();
    let modes: Vec<String> = policy
        .modes()
        .into_iter()
        .filter(|(mode, own)| {
            own.level != Level::Privileged
                && (says(format!("{PREFIX}{mode}")) || says(format!("{PREFIX}{mode}-version")))
        })
        .map(|(mode, own)| format!("{mode}={own}"))
        .collect();
    Some(format!(
        "namespace {} is exempt from Pod Security, and the policy ({}) will be ignored",
        quote(name),
        modes.join(", ")
    ))
}

/// What to say about the pods that are there when a level is raised.
fn existing(namespace: &str, enforce: LevelVersion, pods: &[Arc<Value>]) -> Vec<String> {
    let mut owners = HashSet::new();
    let uid = |p: &Value| object::controller_of(p).map(|o| object::str_at(o, &["uid"]).to_owned());
    let (first, more): (Vec<_>, Vec<_>) =
        pods.iter().partition(|p| uid(p).is_none_or(|owner| owners.insert(owner)));
    // One pod of each owner first: the others are like it.
    let chosen: Vec<_> = first.into_iter().chain(more).collect();
    let mut found: BTreeMap<String, (String, usize)> = BTreeMap::new();
    for pod in chosen.iter().take(MOST_PODS) {
        let reasons: Vec<&str> = evaluate(enforce, pod).into_iter().map(|f| f.reason).collect();
        if reasons.is_empty() {
            continue;
        }
        let entry = found.entry(reasons.join(", ")).or_insert_with(|| (object::name(pod).to_owned(), 0));
        entry.0 = entry.0.as_str().min(object::name(pod)).to_owned();
        entry.1 += 1;
    }
    let mut warnings = vec![];
    if chosen.len() > MOST_PODS {
        warnings.push(format!(
            "new PodSecurity enforce level only checked against the first {MOST_PODS} of {} existing pods",
            chosen.len()
        ));
    }
    if !found.is_empty() {
        warnings.push(format!(
            "existing pods in namespace {} violate the new PodSecurity enforce level {}",
            quote(namespace),
            quote(&enforce.to_string())
        ));
    }
    let mut lines: Vec<(String, String)> = found
        .into_iter()
        .map(|(reasons, (name, count))| {
            let others = match count {
                1 => String::new(),
                2 => " (and 1 other pod)".to_owned(),
                n => format!(" (and {} other pods)", n - 1),
            };
            let line = format!("{name}{others}: {reasons}");
            (line, reasons)
        })
        .collect();
    lines.sort();
    warnings.extend(lines.into_iter().map(|(line, _)| line));
    warnings
}

/// Whether an update of a pod changes what the standards are about: images, and which containers there are.
fn significant(new: &Value, old: &Value) -> bool {
    let image = |c: &Value| object::str_at(c, &["image"]).to_owned();
    for list in [LISTS[0], LISTS[1]] {
        let (new, old) = (containers(new, list), containers(old, list));
        if new.len() != old.len() || new.iter().zip(old).any(|(n, o)| image(n) != image(o)) {
            return true;
        }
    }
    let before = containers(old, LISTS[2]);
    containers(new, LISTS[2])
        .iter()
        .any(|c| before.iter().find(|o| o["name"] == c["name"]).is_none_or(|o| image(o) != image(c)))
}

/// `hostPort (container "c" uses hostPort 80), privileged (…)`
fn detail(found: &[Found]) -> String {
    let one = |f: &Found| match f.detail.as_str() {
        "" => f.reason.to_owned(),
        detail => format!("{} ({detail})", f.reason),
    };
    found.iter().map(one).collect::<Vec<_>>().join(", ")
}
