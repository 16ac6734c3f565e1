//! `PodTolerationRestriction`: pods get the default tolerations of their namespace, or the cluster's, and may tolerate only
//! what is listed there. Source: kubernetes `plugin/pkg/admission/podtolerationrestriction` and `pkg/util/tolerations`;
//! `podtolerationrestriction.admission.k8s.io/v1alpha1 Configuration`.
//!
//! Invariant: of two tolerations, one of which covers the other, the wider one stays.

use crate::{config::Configuration, find, plain_error};
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{ErrorList, GroupResource, Path, Status, field::Error, object, validation};
use kaji_resource::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;

const DEFAULTS: &str = "scheduler.alpha.kubernetes.io/defaultTolerations";
const LISTED: &str = "scheduler.alpha.kubernetes.io/tolerationsWhitelist";

/// Group, versions and kind of the file.
const KIND: (&str, &[&str], &str) =
    ("podtolerationrestriction.admission.k8s.io", &["v1alpha1"], "Configuration");

/// A toleration; fields that are not set are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Toleration {
    #[serde(skip_serializing_if = "String::is_empty")]
    key: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    operator: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    value: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    effect: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    toleration_seconds: Option<i64>,
}

impl Toleration {
    fn of(value: &Value) -> Toleration {
        let text = |field: &str| object::str_at(value, &[field]).to_owned();
        Toleration {
            key: text("key"),
            operator: text("operator"),
            value: text("value"),
            effect: text("effect"),
            toleration_seconds: object::i64_at(value, &["tolerationSeconds"]),
        }
    }

    /// What upstream's validation of pods says of it.
    fn validate(&self, errors: &mut ErrorList, path: &Path) {
        const OPERATORS: [&str; 4] = ["Equal", "Exists", "Lt", "Gt"];
        let (operator, effect) = (self.operator.as_str(), self.effect.as_str());
        let (at_operator, at_effect) = (path.child("operator"), path.child("effect"));
        if !self.key.is_empty() {
            let messages = validation::is_qualified_name(&self.key).into_iter();
            errors.extend(messages.map(|m| Error::invalid(&path.child("key"), self.key.as_str(), m)));
        } else if operator != "Exists" {
            let text =
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(Error::invalid(&at_operator, operator, text));
        }
        if self.toleration_seconds.is_some() && effect != "NoExecute" {
            let text = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(Error::invalid(&at_effect, effect, text));
        }
        match operator {
            "" | "Equal" => {
                let messages = validation::is_valid_label_value(&self.value);
                if !messages.is_empty() {
                    errors.push(Error::invalid(&at_operator, self.value.as_str(), messages.join(";")));
                }
            }
            "Exists" if self.value.is_empty() => {}
            "Exists" => {
                let text = "value must be empty when `operator` is 'Exists'";
                errors.push(Error::invalid(&at_operator, self.value.as_str(), text));
            }
            "Lt" | "Gt" => errors.push(Error::not_supported(&at_operator, operator, &OPERATORS)),
            other => errors.push(Error::not_supported(&at_operator, other, &OPERATORS[..2])),
        }
        let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        if !effect.is_empty() && !effects.contains(&effect) {
            errors.push(Error::not_supported(&at_effect, effect, &effects));
        }
    }

    /// Whether it tolerates whatever the other one does.
    fn covers(&self, other: &Toleration) -> bool {
        if self == other {
            return true;
        }
        let any_key = self.key.is_empty() && self.operator == "Exists";
        let longer = match (self.toleration_seconds, other.toleration_seconds) {
            (Some(most), Some(seconds)) => seconds <= most,
            (Some(_), None) => false,
            (None, _) => true,
        };
        (self.key == other.key || any_key)
            && (self.effect.is_empty() || self.effect == other.effect)
            && (self.effect != "NoExecute" || longer)
            && match self.operator.as_str() {
                "" | "Equal" => other.operator == "Equal" && self.value == other.value,
                operator => operator == "Exists",
            }
    }
}

fn of_pod(pod: &Value) -> Vec<Toleration> {
    object::arr_at(pod, &["spec", "tolerations"]).iter().map(Toleration::of).collect()
}

/// Both lists without what others of them cover; of equal ones the first stays.
fn merge(first: Vec<Toleration>, second: Vec<Toleration>) -> Vec<Toleration> {
    let all: Vec<Toleration> = first.into_iter().chain(second).collect();
    let mut merged: Vec<Toleration> = vec![];
    for (i, one) in all.iter().enumerate() {
        let covered = merged.iter().any(|kept| kept.covers(one))
            || all[i + 1..].iter().any(|later| later != one && later.covers(one));
        if !covered {
            merged.push(one.clone());
        }
    }
    merged
}

/// The file.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    default: Option<Vec<Value>>,
    whitelist: Option<Vec<Value>>,
}

/// The plugin, with what holds where a namespace says nothing.
#[derive(Debug, Default)]
pub(super) struct PodTolerationRestriction {
    defaults: Vec<Toleration>,
    listed: Vec<Toleration>,
}

impl PodTolerationRestriction {
    /// With its part of the `AdmissionConfiguration`.
    ///
    /// # Errors
    /// What is wrong with that, in words.
    pub(super) fn configured(file: Option<Configuration<'_>>) -> Result<Self, String> {
        let Some(file) = file else { return Ok(PodTolerationRestriction::default()) };
        let file: File = serde_json::from_value(file.of_kind(KIND)?).map_err(|e| e.to_string())?;
        let (path, mut errors) = (Path::new("podtolerationrestriction"), vec![]);
        let mut checked = |name: &str, list: Option<Vec<Value>>| -> Result<Vec<Toleration>, String> {
            let list = list.unwrap_or_default();
            let read = |t: Value| serde_json::from_value(t).map_err(|e| format!("{name}: {e}"));
            let list: Vec<Toleration> = list.into_iter().map(read).collect::<Result<_, String>>()?;
            list.iter().enumerate().for_each(|(i, t)| t.validate(&mut errors, &path.child(name).index(i)));
            Ok(list)
        };
        let (defaults, listed) = (checked("default", file.default)?, checked("whitelist", file.whitelist)?);
        if errors.is_empty() {
            return Ok(PodTolerationRestriction { defaults, listed });
        }
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        Err(format!("invalid config: [{}]", texts.join(" ")))
    }

    /// Adds what pods of the namespace tolerate, and what those with guarantees do.
    async fn add(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let mut extra = match a.operation {
            Operation::Create => {
                let own = of_namespace(a, DEFAULTS).await?;
                own.unwrap_or_else(|| self.defaults.clone())
            }
            _ => vec![],
        };
        let Some(pod) = a.object.as_deref_mut() else { return Ok(()) };
        if !kaji_quota::best_effort(pod) {
            extra.push(Toleration {
                key: "node.kubernetes.io/memory-pressure".into(),
                operator: "Exists".into(),
                effect: "NoSchedule".into(),
                ..Toleration::default()
            });
        }
        if !extra.is_empty() {
            let merged = serde_json::to_value(merge(of_pod(pod), extra)).map_err(Status::internal)?;
            object::set_at(pod, &["spec", "tolerations"], merged);
        }
        Ok(())
    }

    async fn check(&self, a: &Attributes<'_>) -> Result<(), Status> {
        let tolerations = a.new_object().map(of_pod).unwrap_or_default();
        if tolerations.is_empty() {
            return Ok(());
        }
        let own = of_namespace(a, LISTED).await?;
        let (listed, scope) = match &own {
            Some(own) => (own, "namespace"),
            None => (&self.listed, "cluster"),
        };
        let allowed = |t: &Toleration| listed.iter().any(|l| l.covers(t));
        if listed.is_empty() || tolerations.iter().all(allowed) {
            return Ok(());
        }
        Err(plain_error(format!(
            "pod tolerations (possibly merged with namespace default tolerations) conflict with its {scope} whitelist"
        )))
    }
}

/// What an annotation of the pod's namespace lists; `None` without the annotation.
async fn of_namespace(a: &Attributes<'_>, annotation: &str) -> Result<Option<Vec<Toleration>>, Status> {
    let namespaces = GroupResource::new("", "namespaces");
    let namespace = find(a, &namespaces, a.namespace).await?;
    let namespace = namespace.ok_or_else(|| Status::not_found(&namespaces, a.namespace))?;
    match object::annotation(&namespace, annotation) {
        None => Ok(None),
        Some("") => Ok(Some(vec![])),
        Some(text) => serde_json::from_str::<Option<Vec<Toleration>>>(text)
            .map(|list| Some(list.unwrap_or_default()))
            .map_err(|error| plain_error(error.to_string())),
    }
}

impl Admission for PodTolerationRestriction {
    fn name(&self) -> &'static str {
        "PodTolerationRestriction"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::BOTH.when(
            matches!(operation, Operation::Create | Operation::Update) && (group, resource) == ("", "pods"),
        )
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.subresource.is_empty()
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            self.add(a).await?;
            self.check(a).await
        })
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(self.check(a))
    }
}

#[cfg(test)]
mod tests;
