//! The hash of a pod template that names its replica set and labels its pods.
//!
//! Invariant: the hash depends on the template's meaning alone: the order of keys, nulls and empty lists do not
//! count. It need not equal upstream's (which hashes Go's memory layout), only stay the same for ever.

use kaji_meta::random::safe_encode;
use serde_json::Value;

/// The label that carries the hash.
pub const HASH_LABEL: &str = "pod-template-hash";

/// The hash of a template, in the alphabet of generated names. The collision count varies it.
pub fn template_hash(template: &Value, collisions: Option<i64>) -> String {
    let mut hasher = Fnv(0x811c_9dc5);
    walk(template, &mut hasher);
    if let Some(count) = collisions {
        hasher.write(b"#");
        hasher.write(&count.to_le_bytes());
    }
    safe_encode(&hasher.0.to_string())
}

/// FNV-1a, 32 bits.
struct Fnv(u32);

impl Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    }

    fn text(&mut self, tag: u8, text: &str) {
        self.write(&[tag]);
        self.write(&(text.len() as u64).to_le_bytes());
        self.write(text.as_bytes());
    }
}

fn empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.values().all(empty),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

fn walk(value: &Value, hasher: &mut Fnv) {
    match value {
        Value::Null => hasher.write(b"n"),
        Value::Bool(b) => hasher.write(if *b { b"t" } else { b"f" }),
        Value::Number(n) => hasher.text(b'd', &n.to_string()),
        Value::String(s) => hasher.text(b's', s),
        Value::Array(list) => {
            hasher.write(b"[");
            list.iter().for_each(|v| walk(v, hasher));
            hasher.write(b"]");
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().filter(|(_, v)| !v.is_null() && !bare(v)).collect();
            entries.sort_unstable_by_key(|(k, _)| *k);
            hasher.write(b"{");
            for (key, value) in entries {
                hasher.text(b'k', key);
                walk(value, hasher);
            }
            hasher.write(b"}");
        }
    }
}

/// An empty list is as good as none; an empty map may mean something (`emptyDir: {}`).
fn bare(value: &Value) -> bool {
    matches!(value, Value::Array(list) if list.is_empty())
}

/// Whether two templates mean the same but for the hash label.
pub fn equal_ignoring_hash(a: &Value, b: &Value) -> bool {
    let strip = |template: &Value| {
        let mut metadata = template.get("metadata").cloned().unwrap_or_default();
        if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
            labels.remove(HASH_LABEL);
        }
        metadata
    };
    let spec = |template| Value::get(template, "spec").unwrap_or(&Value::Null);
    kaji_meta::equality::semantic_equal(spec(a), spec(b)) && {
        let (a, b) = (strip(a), strip(b));
        (empty(&a) && empty(&b)) || kaji_meta::equality::semantic_equal(&a, &b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn is_stable_and_ignores_insignificant_differences() {
        let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
        expect!["55745ff497"].assert_eq(&template_hash(&template, None));
        expect!["b4bf69959"].assert_eq(&template_hash(&template, Some(1)));
        let other = json!({
            "spec": {"containers": [{"image": "i:1", "name": "c", "env": []}], "nodeName": null},
            "metadata": {"labels": {"app": "web"}, "creationTimestamp": null},
        });
        assert_eq!(template_hash(&template, None), template_hash(&other, None));
        let newer = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i:2"}]}});
        assert_ne!(template_hash(&template, None), template_hash(&newer, None));
    }

    #[test]
    fn compares_without_the_hash_label() {
        let plain = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"x": 1}});
        let hashed = json!({"metadata": {"creationTimestamp": null, "labels": {"a": "b", HASH_LABEL: "77"}}, "spec": {"x": 1, "y": null}});
        assert!(equal_ignoring_hash(&plain, &hashed));
        assert!(equal_ignoring_hash(
            &json!({"spec": {}}),
            &json!({"metadata": {"labels": {HASH_LABEL: "1"}}, "spec": {}})
        ));
        assert!(!equal_ignoring_hash(&plain, &json!({"metadata": {"labels": {"a": "c"}}, "spec": {"x": 1}})));
    }
}
