//! Moving from kubectl's client-side apply to server-side apply: the last-applied-configuration annotation.

use serde_json::{Map, Value};

use super::apply::ApplyArgs;
use super::compare::compare_fully;
use super::conflict::Conflict;
use super::{check, value};
use crate::fieldset::from_value::applied;
use crate::fieldset::{Node, Tree, ops};

/// The one manager that the annotation matters to; any other name opts out.
pub(crate) const MANAGER: &str = "kubectl";

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The most bytes that the annotations of an object may have together.
const MAX_ANNOTATIONS: usize = 256 * 1024;

fn annotation(object: &Value) -> Option<&str> {
    let value = object.get("metadata")?.get("annotations")?.get(ANNOTATION)?.as_str()?;
    (!value.is_empty()).then_some(value)
}

/// The conflicts that remain when those about fields that client-side apply set are let go.
pub(crate) fn remaining(args: &ApplyArgs<'_>, mut conflicts: Vec<Conflict>) -> Vec<Conflict> {
    if let Some(allowed) = allowed(args) {
        conflicts.retain(|c| !ops::contains(&allowed, c.path.iter().map(String::as_str)));
    }
    conflicts
}

/// The fields of the annotation that still have in the live object the value that they had then. `None` if there is
/// no usable annotation.
fn allowed(args: &ApplyArgs<'_>) -> Option<Tree> {
    let last: Value = serde_json::from_str(annotation(args.live)?).ok()?;
    if last.get("apiVersion")?.as_str()? != args.api_version {
        return None;
    }
    let schema = args.schema.get();
    check::object(schema, args.live).ok()?;
    check::object(schema, &last).ok()?;
    let mut set = applied(Node::root(schema), &last);
    let change = compare_fully(schema, &last, args.live).ok()?;
    ops::subtract(&mut set, &change.modified);
    ops::subtract(&mut set, &change.added);
    ops::subtract(&mut set, &change.removed);
    Some(set)
}

/// Keeps an existing annotation up to date with what was applied. True if that changed it.
pub(crate) fn refresh(object: &mut Value, config: &Value) -> bool {
    let Some(old) = annotation(object) else { return false };
    let mut config = config.clone();
    if let Some(annotations) = config.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(ANNOTATION);
    }
    let mut new = value::json(&config);
    new.push('\n');
    if new == old {
        return false;
    }
    let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) else {
        return false;
    };
    annotations.insert(ANNOTATION.into(), new.into());
    if size(annotations) > MAX_ANNOTATIONS {
        annotations.remove(ANNOTATION);
    }
    true
}

fn size(annotations: &Map<String, Value>) -> usize {
    annotations.iter().map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum()
}
