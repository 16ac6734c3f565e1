//! The default class of a resource: what `DefaultStorageClass` and `DefaultIngressClass` share.

use kaji_engine::Attributes;
use kaji_meta::{GroupResource, Status, object};
use serde_json::Value;
use std::{cmp::Reverse, sync::Arc};

/// The name of the newest class that one of these annotations marks as the default.
fn default_name(classes: &[Arc<Value>], marks: &[&str]) -> Option<String> {
    let marked = classes.iter().filter(|c| marks.iter().any(|m| object::annotation(c, m) == Some("true")));
    // Times of one format and zone: their texts sort as they do.
    let newest = marked.min_by_key(|c| (Reverse(object::creation_timestamp(c)), object::name(c)));
    newest.map(|c| object::name(c).to_owned())
}

/// Sets `spec.<field>` unless there is one, also of old as an annotation.
pub(crate) async fn set(
    a: &mut Attributes<'_>,
    field: &str,
    annotation: &str,
    classes: &GroupResource,
    marks: &[&str],
) -> Result<(), Status> {
    let Some(o) = a.new_object() else { return Ok(()) };
    if !o["spec"][field].is_null() || object::annotation(o, annotation).is_some() {
        return Ok(());
    }
    a.api.sync().await?;
    if let Some(name) = default_name(&a.api.list(classes, None), marks)
        && let Some(o) = a.object.as_deref_mut()
    {
        object::set_at(o, &["spec", field], name);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selects_newest_default_class() {
        let class = |name: &str, mark: &str, at: &str| {
            Arc::new(
                json!({"metadata": {"name": name, "creationTimestamp": at, "annotations": {"default": mark}}}),
            )
        };
        let of = |classes: &[Arc<Value>]| default_name(classes, &["default", "old"]);
        let (a, b) = (class("a", "true", "2026-01-01T00:00:00Z"), class("b", "true", "2026-01-02T00:00:00Z"));
        let (c, d) =
            (class("c", "true", "2026-01-02T00:00:00Z"), class("d", "false", "2026-01-03T00:00:00Z"));
        assert_eq!(of(&[a.clone(), c, b, d.clone()]).as_deref(), Some("b"));
        assert_eq!(of(&[a]).as_deref(), Some("a"));
        assert_eq!(of(&[d]), None);
    }
}
