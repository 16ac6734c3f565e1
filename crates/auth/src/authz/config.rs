//! The file that says which authorizers there are, in which order: `AuthorizationConfiguration` of
//! apiserver.config.k8s.io. Source: KEP-3221.
//!
//! Invariant: what the file says is done, or the file is refused; no field of it is passed over.

#[cfg(test)]
mod tests;
mod webhook;

use kaji_meta::{
    TypeMeta,
    field::{Error, ErrorList, Path},
    validation,
};
use serde_json::{Map, Value};
pub use webhook::{OnFailure, WebhookConfig};

/// An authorizer of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Kubelets, by what runs on their nodes.
    Node,
    /// Roles and bindings.
    Rbac,
    /// Policies of a file.
    Abac,
    /// Everything is allowed.
    AlwaysAllow,
    /// Everything is refused that no authorizer before it allows.
    AlwaysDeny,
    /// A remote service decides. There may be several.
    Webhook(Box<WebhookConfig>),
}

impl Mode {
    /// The order without a file: kubeadm's.
    pub fn default_order() -> Vec<Mode> {
        vec![Mode::Node, Mode::Rbac]
    }

    /// As files and flags name it.
    pub fn kind(&self) -> &'static str {
        match self {
            Mode::Node => "Node",
            Mode::Rbac => "RBAC",
            Mode::Abac => "ABAC",
            Mode::AlwaysAllow => "AlwaysAllow",
            Mode::AlwaysDeny => "AlwaysDeny",
            Mode::Webhook(_) => "Webhook",
        }
    }

    /// Its name among those of its kind.
    pub fn name(&self) -> String {
        match self {
            Mode::Webhook(config) => config.name.clone(),
            other => other.kind().to_lowercase(),
        }
    }

    /// The mode that files and flags call so; `None` for webhooks, which need more.
    pub fn plain(kind: &str) -> Option<Mode> {
        Some(match kind {
            "Node" => Mode::Node,
            "RBAC" => Mode::Rbac,
            "ABAC" => Mode::Abac,
            "AlwaysAllow" => Mode::AlwaysAllow,
            "AlwaysDeny" => Mode::AlwaysDeny,
            _ => return None,
        })
    }
}

/// All types of upstream.
pub const TYPES: &[&str] = &["ABAC", "AlwaysAllow", "AlwaysDeny", "Node", "RBAC", "Webhook"];
const VERSIONS: &[&str] =
    &["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1alpha1"];

fn unknown(map: &Map<String, Value>, known: &[&str], at: &str) -> Result<(), String> {
    match map.keys().find(|k| !known.contains(&k.as_str())) {
        Some(key) => Err(format!("strict decoding error: unknown field \"{at}{key}\"")),
        None => Ok(()),
    }
}

/// The list of a configuration. What has the wrong form is refused before anything is looked at more closely.
fn decode(config: &Value) -> Result<&[Value], String> {
    let checked = TypeMeta::of(config).expect("AuthorizationConfiguration", VERSIONS);
    checked.map_err(|e| format!("{e}: expected AuthorizationConfiguration of {}", VERSIONS[0]))?;
    let Some(map) = config.as_object() else { return Err("expected an object".into()) };
    unknown(map, &["apiVersion", "kind", "authorizers"], "")?;
    let list = match map.get("authorizers") {
        None | Some(Value::Null) => return Ok(&[]),
        Some(Value::Array(list)) => list,
        Some(_) => return Err("strict decoding error: authorizers: expected a list".into()),
    };
    for (i, authorizer) in list.iter().enumerate() {
        let at = format!("authorizers[{i}]");
        let Some(map) = authorizer.as_object() else {
            return Err(format!("strict decoding error: {at}: expected an object"));
        };
        unknown(map, &["type", "name", "webhook"], &format!("{at}."))?;
        for field in ["type", "name"] {
            if map.get(field).is_some_and(|v| !v.is_string() && !v.is_null()) {
                return Err(format!("strict decoding error: {at}.{field}: expected a string"));
            }
        }
        if let Some(webhook) = map.get("webhook").filter(|w| !w.is_null()) {
            webhook::decode(webhook, &format!("{at}.webhook"))?;
        }
    }
    Ok(list)
}

fn joined(errors: &[String]) -> Result<(), String> {
    match errors {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

/// Reads a configuration. When it takes another's place, the kinds that cannot be missing are `required`.
///
/// # Errors
/// What is wrong with it, in upstream's words.
pub fn parse(config: &Value, required: &[&str]) -> Result<Vec<Mode>, String> {
    let authorizers =
        decode(config).map_err(|e| format!("failed to load AuthorizationConfiguration from file: {e}"))?;
    let path = Path::new("authorizers");
    let (mut errors, mut modes, mut names) = (ErrorList::new(), vec![], vec![]);
    if authorizers.is_empty() {
        errors.push(Error::required(&path, "at least one authorization mode must be defined"));
    }
    for (i, authorizer) in authorizers.iter().enumerate() {
        modes.extend(entry(authorizer, &path.index(i), &mut errors, &modes, &mut names));
    }
    joined(&errors.iter().map(Error::to_string).collect::<Vec<_>>())?;
    let mut errors = vec![];
    for (mode, name) in modes.iter().zip(names) {
        let expected = mode.name();
        if expected != name {
            errors.push(format!("expected name {expected} for authorizer {} instead of {name}", mode.kind()));
        }
    }
    let missing: Vec<&str> =
        required.iter().copied().filter(|r| !modes.iter().any(|m| m.kind() == *r)).collect();
    if !missing.is_empty() {
        errors.push(format!("missing required types: [{}]", missing.join(" ")));
    }
    joined(&errors).map(|()| modes)
}

fn entry<'a>(
    authorizer: &'a Value,
    path: &Path,
    errors: &mut ErrorList,
    before: &[Mode],
    names: &mut Vec<&'a str>,
) -> Option<Mode> {
    let text = |field: &str| authorizer.get(field).and_then(Value::as_str).unwrap_or_default();
    let (kind, name) = (text("type"), text("name"));
    let at = path.child("type");
    if kind.is_empty() {
        errors.push(Error::required(&at, ""));
        return None;
    }
    if !TYPES.contains(&kind) {
        errors.push(Error::not_supported(&at, kind, TYPES));
        return None;
    }
    let plain = Mode::plain(kind);
    if plain.as_ref().is_some_and(|mode| before.contains(mode)) {
        errors.push(Error::duplicate(&at, kind));
        return None;
    }
    let at_name = path.child("name");
    let invalid = validation::is_dns1123_subdomain(name);
    if name.is_empty() {
        errors.push(Error::required(&at_name, ""));
    } else if names.contains(&name) {
        errors.push(Error::duplicate(&at_name, name));
    } else if !invalid.is_empty() {
        let text = format!("authorizer name is invalid: {}", invalid.join(", "));
        errors.push(Error::invalid(&at_name, name, text));
    }
    names.push(name);
    let webhook = authorizer.get("webhook").filter(|w| !w.is_null());
    match (kind, webhook) {
        ("Webhook", Some(webhook)) => {
            return webhook::read(name, webhook, path, errors).map(|w| Mode::Webhook(Box::new(w)));
        }
        ("Webhook", None) => {
            errors.push(Error::required(&path.child("webhook"), "required when type=Webhook"));
        }
        (_, Some(_)) => {
            let text = "may only be specified when type=Webhook";
            errors.push(Error::invalid(&path.child("webhook"), "non-null", text));
        }
        _ => {}
    }
    plain
}
