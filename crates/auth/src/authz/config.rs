//! The file that says which authorizers there are, in which order: `AuthorizationConfiguration` of
//! apiserver.config.k8s.io. Source: KEP-3221.

use kaji_meta::{
    field::{Error, ErrorList, Path},
    validation,
};
use serde_json::{Map, Value};

/// An authorizer of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Kubelets, by what runs on their nodes.
    Node,
    /// Roles and bindings.
    Rbac,
    /// Everything is allowed.
    AlwaysAllow,
    /// Everything is refused that nobody before allows.
    AlwaysDeny,
}

/// The order without a file.
pub const DEFAULT: &[Mode] = &[Mode::Node, Mode::Rbac];

const VERSIONS: &[&str] =
    &["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1alpha1"];
const TYPES: &[&str] = &["ABAC", "AlwaysAllow", "AlwaysDeny", "Node", "RBAC", "Webhook"];
const WITHOUT: &str = "this server has no such authorizer yet";

fn unknown(map: &Map<String, Value>, known: &[&str], at: &str) -> Result<(), String> {
    match map.keys().find(|k| !known.contains(&k.as_str())) {
        Some(key) => Err(format!("strict decoding error: unknown field \"{at}{key}\"")),
        None => Ok(()),
    }
}

/// Reads a configuration.
///
/// # Errors
/// What is wrong with it, in upstream's words.
pub fn parse(config: &Value) -> Result<Vec<Mode>, String> {
    let text = |field: &str| config.get(field).and_then(Value::as_str).unwrap_or_default();
    if !VERSIONS.contains(&text("apiVersion")) || text("kind") != "AuthorizationConfiguration" {
        return Err(format!(
            "no kind {:?} is registered for version {:?}: expected AuthorizationConfiguration of {}",
            text("kind"),
            text("apiVersion"),
            VERSIONS[0]
        ));
    }
    let Some(map) = config.as_object() else { return Err("expected an object".into()) };
    unknown(map, &["apiVersion", "kind", "authorizers"], "")?;
    let authorizers = config.get("authorizers").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let path = Path::new("authorizers");
    let (mut errors, mut modes, mut names) = (ErrorList::new(), vec![], vec![]);
    if authorizers.is_empty() {
        errors.push(Error::required(&path, "at least one authorization mode must be defined"));
    }
    for (i, authorizer) in authorizers.iter().enumerate() {
        if let Some(map) = authorizer.as_object() {
            unknown(map, &["type", "name", "webhook"], &format!("authorizers[{i}]."))?;
        }
        entry(authorizer, &path.index(i), &mut errors, &mut modes, &mut names);
    }
    match errors.as_slice() {
        [] => Ok(modes),
        [one] => Err(one.to_string()),
        many => Err(format!("[{}]", many.iter().map(Error::to_string).collect::<Vec<_>>().join(", "))),
    }
}

fn entry<'a>(
    authorizer: &'a Value,
    path: &Path,
    errors: &mut ErrorList,
    modes: &mut Vec<Mode>,
    names: &mut Vec<&'a str>,
) {
    let text = |field: &str| authorizer.get(field).and_then(Value::as_str).unwrap_or_default();
    let (kind, name) = (text("type"), text("name"));
    let mode = match kind {
        "" => return errors.push(Error::required(&path.child("type"), "")),
        "Node" => Mode::Node,
        "RBAC" => Mode::Rbac,
        "AlwaysAllow" => Mode::AlwaysAllow,
        "AlwaysDeny" => Mode::AlwaysDeny,
        "ABAC" | "Webhook" => return errors.push(Error::invalid(&path.child("type"), kind, WITHOUT)),
        _ => return errors.push(Error::not_supported(&path.child("type"), kind, TYPES)),
    };
    if modes.contains(&mode) {
        return errors.push(Error::duplicate(&path.child("type"), kind));
    }
    modes.push(mode);
    let at = path.child("name");
    let invalid = validation::is_dns1123_subdomain(name);
    if name.is_empty() {
        errors.push(Error::required(&at, ""));
    } else if names.contains(&name) {
        errors.push(Error::duplicate(&at, name));
    } else if !invalid.is_empty() {
        errors.push(Error::invalid(&at, name, format!("authorizer name is invalid: {}", invalid.join(", "))));
    } else if name != kind.to_lowercase() {
        let text = format!("expected name {} for authorizer {kind} instead of {name}", kind.to_lowercase());
        errors.push(Error::invalid(&at, name, text));
    }
    names.push(name);
    if authorizer.get("webhook").is_some_and(|w| !w.is_null()) {
        let text = "may only be specified when type=Webhook";
        errors.push(Error::invalid(&path.child("webhook"), "non-null", text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn files() {
        let config = |authorizers: Value| json!({"apiVersion": VERSIONS[0], "kind": "AuthorizationConfiguration", "authorizers": authorizers});
        let one = |kind: &str, name: &str| json!({"type": kind, "name": name});
        let all = [
            config(json!([one("Node", "node"), one("RBAC", "rbac")])),
            config(json!([one("AlwaysDeny", "alwaysdeny")])),
            config(json!([])),
            config(json!([one("", ""), one("X", "x"), one("RBAC", ""), one("RBAC", "rbac")])),
            config(json!([one("RBAC", "Rbac"), one("Node", "mine")])),
            config(
                json!([{"type": "Webhook", "name": "w", "webhook": {}}, {"type": "Node", "name": "node", "webhook": {}}]),
            ),
            config(json!([{"type": "Node", "name": "node", "webhok": {}}])),
            json!({"apiVersion": "v1", "kind": "ConfigMap"}),
        ];
        let shown = all.map(|c| format!("{:?}", parse(&c)));
        expect_test::expect![[r#"
            Ok([Node, Rbac])
            Ok([AlwaysDeny])
            Err("authorizers: Required value: at least one authorization mode must be defined")
            Err("[authorizers[0].type: Required value, authorizers[1].type: Unsupported value: \"X\": supported values: \"ABAC\", \"AlwaysAllow\", \"AlwaysDeny\", \"Node\", \"RBAC\", \"Webhook\", authorizers[2].name: Required value, authorizers[3].type: Duplicate value: \"RBAC\"]")
            Err("[authorizers[0].name: Invalid value: \"Rbac\": authorizer name is invalid: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*'), authorizers[1].name: Invalid value: \"mine\": expected name node for authorizer Node instead of mine]")
            Err("[authorizers[0].type: Invalid value: \"Webhook\": this server has no such authorizer yet, authorizers[1].webhook: Invalid value: \"non-null\": may only be specified when type=Webhook]")
            Err("strict decoding error: unknown field \"authorizers[0].webhok\"")
            Err("no kind \"ConfigMap\" is registered for version \"v1\": expected AuthorizationConfiguration of apiserver.config.k8s.io/v1")"#]].assert_eq(&shown.join("\n"));
    }
}
