//! Merging a configuration into an object without owning anything of it, as mutating admission policies do.
//! Source: apiserver `policy/mutating/patch/smd.go`.
//!
//! Invariant: nothing is removed. What is replaced whole (atomic lists, maps and structs) may not be in a configuration at
//! all: a manager that names one field of it would remove the others.

use serde_json::Value;

use super::{check, merge};
use crate::fieldset::node::{Node, Shape};
use crate::schema::Schema;

/// `config` merged into `live`, both whole objects of the schema's kind. Managed fields stay as they are.
///
/// # Errors
/// Upstream's text: the configuration does not fit the schema, or has something atomic in it.
pub fn configure(schema: &Schema, live: &Value, config: &Value) -> Result<Value, String> {
    check::object(schema, config)
        .map_err(|e| format!("failed to convert patch object to typed object: {e}"))?;
    let mut atomics = vec![];
    atomic(Node::root(schema), config, &mut String::new(), &mut atomics);
    if !atomics.is_empty() {
        let list = atomics.join(", ");
        return Err(format!(
            "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {list}"
        ));
    }
    let mut merged =
        merge::objects(schema, live, config).map_err(|e| format!("failed to merge patch: {e}"))?;
    let managed = live.get("metadata").and_then(|m| m.get("managedFields"));
    if let (Some(managed), Some(Value::Object(metadata))) = (managed, merged.get_mut("metadata")) {
        metadata.insert("managedFields".into(), managed.clone());
    }
    Ok(merged)
}

/// The paths of what is replaced whole.
fn atomic(node: Node<'_>, value: &Value, path: &mut String, found: &mut Vec<String>) {
    let end = path.len();
    match (node.shape(value), value) {
        (Shape::Atomic, Value::Object(_) | Value::Array(_)) => found.push(path.clone()),
        (Shape::Map(shape), Value::Object(fields)) => {
            for (name, value) in fields {
                let child = shape.child_or_deduced(name);
                if !child.declared {
                    continue;
                }
                path.push('.');
                path.push_str(name);
                atomic(child.node, value, path, found);
                path.truncate(end);
            }
        }
        (Shape::List(list), Value::Array(items)) => {
            for (i, item) in items.iter().enumerate() {
                path.push_str(&format!("[{i}]"));
                atomic(list.items, item, path, found);
                path.truncate(end);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn configurations_add_and_change() {
        let schema = types::for_gvk("apps", "v1", "Deployment").unwrap();
        let live = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "d", "managedFields": [{"manager": "m"}], "labels": {"a": "1"}},
            "spec": {"replicas": 1, "template": {"spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "j"}]}}}});
        let mut out = String::new();
        for config in [
            json!({"metadata": {"labels": {"b": "2"}}, "spec": {"replicas": 3}}),
            json!({"spec": {"template": {"spec": {"containers": [{"name": "b", "image": "k"}, {"name": "c"}]}}}}),
            json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}}),
            json!({"spec": {"template": {"spec": {"nodeSelector": {"a": "b"}, "containers": [{"name": "a", "command": ["x"]}]}}}}),
            json!({"spec": {"replica": 1}}),
            json!({"spec": {"replicas": "one"}}),
        ] {
            let mut config = config;
            config["apiVersion"] = json!("apps/v1");
            config["kind"] = json!("Deployment");
            out += &match configure(&schema, &live, &config) {
                Ok(merged) => format!("{merged}\n"),
                Err(error) => format!("{error}\n"),
            };
        }
        expect![[r#"
            {"apiVersion":"apps/v1","kind":"Deployment","metadata":{"labels":{"a":"1","b":"2"},"managedFields":[{"manager":"m"}],"name":"d"},"spec":{"replicas":3,"template":{"spec":{"containers":[{"image":"i","name":"a"},{"image":"j","name":"b"}]}}}}
            {"apiVersion":"apps/v1","kind":"Deployment","metadata":{"labels":{"a":"1"},"managedFields":[{"manager":"m"}],"name":"d"},"spec":{"replicas":1,"template":{"spec":{"containers":[{"image":"i","name":"a"},{"image":"k","name":"b"},{"name":"c"}]}}}}
            invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.selector
            invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.template.spec.containers[0].command, .spec.template.spec.nodeSelector
            failed to convert patch object to typed object: .spec.replica: field not declared in schema
            failed to convert patch object to typed object: .spec.replicas: expected numeric (int or float), got string
        "#]]
        .assert_eq(&out);
    }
}
