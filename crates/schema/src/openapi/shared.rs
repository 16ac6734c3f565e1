//! Parameters of a v2 document that many operations have: they are written once, and referred to.
//!
//! Invariant: a parameter has the name that upstream gives it, which comes from its content.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use serde_json::{Map, Value, json};

/// The order in which Go writes the members of a parameter.
const MEMBERS: [&str; 7] = ["uniqueItems", "type", "description", "name", "in", "required", "schema"];

/// Takes the parameters that are shared out of `paths`, and leaves references to them.
pub(super) fn take(paths: &mut Map<String, Value>) -> Map<String, Value> {
    let mut shared = Map::new();
    for item in paths.values_mut().filter_map(Value::as_object_mut) {
        for (key, part) in item {
            let list = match key.as_str() {
                "parameters" => Some(part),
                _ => part.get_mut("parameters"),
            };
            for parameter in list.and_then(Value::as_array_mut).into_iter().flatten() {
                share(parameter, &mut shared);
            }
        }
    }
    shared
}

fn share(parameter: &mut Value, shared: &mut Map<String, Value>) {
    let text = |key: &str| parameter.get(key).and_then(Value::as_str).unwrap_or_default();
    if !is_shared(text("in"), text("name"), parameter) {
        return;
    }
    let plain = text("name").to_owned();
    let mut name = format!("{plain}-{}", hash(&go_json(parameter)));
    let mut others = 0;
    while shared.get(&name).is_some_and(|there| there != parameter) {
        others += 1;
        name = format!("{plain}-{others}");
    }
    let reference = json!({"$ref": format!("#/parameters/{name}")});
    let parameter = std::mem::replace(parameter, reference);
    shared.entry(name).or_insert(parameter);
}

/// What names a kind is not shared; nor are the two query parameters that clients look for in an operation itself.
fn is_shared(place: &str, name: &str, parameter: &Value) -> bool {
    match (place, name) {
        ("query" | "path", "name") | ("query", "fieldValidation" | "dryRun") => false,
        ("body", _) => parameter
            .pointer("/schema/$ref")
            .and_then(Value::as_str)
            .is_some_and(|r| r.starts_with("#/definitions/io.k8s.apimachinery")),
        _ => true,
    }
}

fn go_json(parameter: &Value) -> String {
    let members = MEMBERS.into_iter().filter_map(|key| Some(format!("\"{key}\":{}", parameter.get(key)?)));
    let text = format!("{{{}}}", members.collect::<Vec<_>>().join(","));
    // Go escapes what HTML would read.
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// FNV-1 of 64 bits, of which six bytes are shown.
fn hash(text: &str) -> String {
    let sum = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| sum.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte));
    let [bytes @ .., _, _] = sum.to_be_bytes();
    URL_SAFE.encode(bytes)
}

#[cfg(test)]
mod tests {
    use crate::docs::type_doc;
    use crate::openapi::{Group, Model, Resource, Subresource, v2};
    use expect_test::expect;
    use kaji_meta::GroupVersion;

    /// The document of pods alone.
    fn pods() -> serde_json::Value {
        let verbs = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
        let connects =
            |name, kind| Subresource { name, gvk: ("", "v1", kind), verbs: &["connect"], model: None };
        let group = Group {
            group_version: GroupVersion::new("", "v1"),
            resources: vec![Resource {
                plural: "pods",
                kind: "Pod",
                list_kind: "PodList",
                namespaced: true,
                verbs,
                model: Model::of_kind("", "v1", "Pod").unwrap(),
                subresources: vec![
                    connects("attach", "PodAttachOptions"),
                    connects("exec", "PodExecOptions"),
                    connects("log", "Pod"),
                    connects("portforward", "PodPortForwardOptions"),
                    connects("proxy", "PodProxyOptions"),
                ],
            }],
        };
        v2(&[group], &[], &type_doc)
    }

    /// The names are those of upstream's published document.
    #[test]
    fn parameters_have_upstreams_names() {
        let document = pods();
        let names: Vec<&str> =
            document["parameters"].as_object().unwrap().keys().map(String::as_str).collect();
        expect![[r#"
            allowWatchBookmarks-HC2hJt-J
            body-2Y1dVQaQ
            body-78PwaGsr
            command-Py3eQybp
            container-1GeXxFDC
            container-_Q-EJ3nR
            container-i5dOmRiM
            continue-QfD61s0i
            fieldManager-7c6nTn1T
            fieldManager-Qy4HdaTW
            fieldSelector-xIcQKXFG
            follow-9OIXh_2R
            force-tOGGb0Yi
            gracePeriodSeconds--K5HaBOS
            ignoreStoreReadErrorWithClusterBreakingPotential-QbNkfIqj
            insecureSkipTLSVerifyBackend-gM00jVbe
            labelSelector-5Zw57w4C
            limit-1NfNmdNH
            limitBytes-zwd1RXuc
            namespace-vgWSWtn3
            orphanDependents-uRB25kX5
            path-oPbzgLUj
            path-z6Ciiujn
            ports-91KROJmm
            pretty-tJGM1-ng
            previous-1jxDPu3y
            propagationPolicy-6jk3prlO
            resourceVersion-5WAnf1kx
            resourceVersionMatch-t8XhRHeC
            sendInitialEvents-rLXlEK_k
            shardSelector-Kgyki_3_
            sinceSeconds-vE2NLdnP
            stderr-26jJhFUR
            stderr-W_1TNlWc
            stdin-PSzNhyUC
            stdin-sEFnN3IS
            stdout--EZLRwV1
            stdout-005YMKE6
            stream-l-48cgXv
            tailLines-9xQLWHMV
            timeoutSeconds-yvYezaOC
            timestamps-c17fW1w_
            tty-g7MlET_l
            tty-s0flW37O
            watch-XNNPZGbK"#]]
        .assert_eq(&names.join("\n"));
        let paths = &document["paths"];
        expect![[r##"[{"description":"name of the PodExecOptions","in":"path","name":"name","required":true,"type":"string","uniqueItems":true},{"$ref":"#/parameters/namespace-vgWSWtn3"},{"$ref":"#/parameters/command-Py3eQybp"},{"$ref":"#/parameters/container-i5dOmRiM"},{"$ref":"#/parameters/stderr-W_1TNlWc"},{"$ref":"#/parameters/stdin-PSzNhyUC"},{"$ref":"#/parameters/stdout--EZLRwV1"},{"$ref":"#/parameters/tty-s0flW37O"}]"##]]
        .assert_eq(&paths["/api/v1/namespaces/{namespace}/pods/{name}/exec"]["parameters"].to_string());
    }
}
