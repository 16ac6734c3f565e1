//! Tests of `customresourcedefinitions`: fixtures in, expectations out.

use super::*;
use crate::shared::testing::{TestContext, create_errors, created, deps, update_errors};
use expect_test::expect;

fn crd() -> Value {
    json!({"metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}})
}

#[test]
fn fills_in_defaults() {
    let made: Value = serde_json::from_str(&created(&def(&deps()), crd())).unwrap();
    expect![[r#"{"conversion":{"strategy":"None"},"group":"example.com","names":{"kind":"Widget","listKind":"WidgetList","plural":"widgets","singular":"widget"},"scope":"Namespaced","versions":[{"name":"v1","schema":{"openAPIV3Schema":{"type":"object"}},"served":true,"storage":true}]}"#]]
        .assert_eq(&made["spec"].to_string());
    assert_eq!(made["status"], json!({"storedVersions": ["v1"]}));
    assert_eq!(create_errors(&def(&deps()), crd()), "");
}

#[test]
fn reports_problems_of_all_versions_once() {
    let mut bad = crd();
    bad["status"] = json!({"storedVersions": ["v1"]});
    for (f, text) in [("singular", "widget"), ("listKind", "WidgetList")] {
        bad["spec"]["names"][f] = text.into();
    }
    bad["spec"]["versions"][0]["additionalPrinterColumns"] =
        json!([{}, {"name": "n", "type": "x", "format": "y", "jsonPath": "z"}]);
    bad["spec"]["versions"][0]["subresources"] =
        json!({"scale": {"specReplicasPath": "x", "statusReplicasPath": ".x", "labelSelectorPath": ".y"}});
    bad["spec"]["versions"][0]["deprecated"] = true.into();
    bad["spec"]["versions"][0]["deprecationWarning"] = "".into();
    expect![[r#"
        spec.versions[0].deprecationWarning: Invalid value: "": must not be an empty string
        spec.subresources.scale.specReplicasPath: Invalid value: "x": must be a simple json path starting with .
        spec.subresources.scale.statusReplicasPath: Invalid value: ".x": should be a json path under .status
        spec.subresources.scale.labelSelectorPath: Invalid value: ".y": should be a json path under either .spec or .status
        spec.additionalPrinterColumns[0].name: Required value
        spec.additionalPrinterColumns[0].type: Required value: must be one of boolean,date,integer,number,string
        spec.additionalPrinterColumns[0].JSONPath: Required value
        spec.additionalPrinterColumns[1].type: Invalid value: "x": must be one of boolean,date,integer,number,string
        spec.additionalPrinterColumns[1].format: Invalid value: "y": must be one of byte,date,date-time,double,float,int32,int64,password
        spec.additionalPrinterColumns[1].JSONPath: Invalid value: "z": must be a simple json path starting with ."#]]
    .assert_eq(&create_errors(&def(&deps()), bad.clone()));
    let mut other = bad["spec"]["versions"][0].clone();
    other["name"] = "v2".into();
    other["storage"] = false.into();
    other["additionalPrinterColumns"] = json!([]);
    bad["spec"]["versions"].as_array_mut().unwrap().push(other);
    let found = create_errors(&def(&deps()), bad);
    assert!(found.contains("spec.versions[0].additionalPrinterColumns[0].name"), "{found}");
    assert!(found.contains("spec.subresources.scale.specReplicasPath"), "{found}");
}

#[test]
fn rejects_invalid_fields() {
    let bad = json!({"metadata": {"name": "x"}, "spec": {"group": "example", "scope": "y", "names": {"plural": "Widgets"},
        "versions": [{"name": "1"}, {"name": "1"}], "conversion": {"strategy": "Webhook"}}});
    expect![[r#"
        metadata.name: Invalid value: "x": must be spec.names.plural+"."+spec.group
        spec.group: Invalid value: "example": should be a domain with at least one dot
        spec.scope: Unsupported value: "y": supported values: "Cluster", "Namespaced"
        spec.versions[0].schema.openAPIV3Schema: Required value
        spec.versions[1].schema.openAPIV3Schema: Required value
        spec.versions[0].name: Invalid value: "1": a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')
        spec.versions[1].name: Invalid value: "1": a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')
        spec.versions: Invalid value: [{"name":"1"},{"name":"1"}]: must contain unique version names
        spec.versions: Invalid value: [{"name":"1"},{"name":"1"}]: must have exactly one version marked as storage version
        spec.names.singular: Required value
        spec.names.kind: Required value
        spec.names.listKind: Required value
        spec.names.plural: Invalid value: "Widgets": a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')
        spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook
        spec.conversion.conversionReviewVersions: Required value
        status.storedVersions: Invalid value: null: must have at least one stored version"#]].assert_eq(&create_errors(&def(&deps()), bad));
    let reviewed = |versions: Value| {
        let mut crd = crd();
        crd["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
            "clientConfig": {"url": "https://example.com/"}, "conversionReviewVersions": versions}});
        crd["status"] = json!({"storedVersions": ["v1"]});
        crd
    };
    expect![[r#"
        spec.conversion.conversionReviewVersions[1]: Invalid value: "v2": duplicate version
        spec.conversion.conversionReviewVersions[2]: Invalid value: "V3": a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')
        spec.conversion.conversionReviewVersions: Invalid value: ["v2","v2","V3"]: must include at least one of v1, v1beta1"#]]
    .assert_eq(&create_errors(&def(&deps()), reviewed(json!(["v2", "v2", "V3"]))));
    // A stored definition without a known version stays valid without one.
    let update = |new: Value, old: Value| update_errors(&def(&deps()), "", reviewed(new), reviewed(old));
    assert_eq!(update(json!(["v3"]), json!(["v2"])), "");
    assert!(update(json!(["v3"]), json!(["v1"])).ends_with("must include at least one of v1, v1beta1"));
    let mut new = crd();
    new["spec"]["scope"] = "Cluster".into();
    let mut old = crd();
    old["status"] =
        json!({"storedVersions": ["v1"], "conditions": [{"type": "Established", "status": "True"}]});
    assert_eq!(
        update_errors(&def(&deps()), "", new, old),
        r#"spec.scope: Invalid value: "Cluster": field is immutable"#
    );
}

#[test]
fn stored_versions_stay_in_the_spec_but_are_not_looked_at_in_a_status() {
    let stored = |all: Value| {
        let mut crd = crd();
        crd["status"] = json!({"storedVersions": all});
        crd
    };
    let update = |subresource, new, old| update_errors(&def(&deps()), subresource, stored(new), stored(old));
    assert_eq!(
        update("", json!(["v0", "v1"]), json!(["v0", "v1"])),
        "status.storedVersions[0]: Invalid value: \"v0\": missing from spec.versions; v0 was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in v0 and removes v0 from status.storedVersions"
    );
    assert_eq!(update("status", json!(["v0"]), json!(["v1"])), "");
    assert_eq!(update("status", json!([]), json!(["v1"])), "");
}

#[test]
fn warns_about_new_unrecognized_formats() {
    let fixture = TestContext::default();
    let def = def(&deps());
    let mut new = crd();
    new["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"] = json!({
        "a": {"type": "string", "format": "nope"},
        "b": {"type": "array", "items": {"type": "string", "format": "hex"}},
        "c": {"type": "integer", "format": "int7"},
        "d": {"type": "string", "format": "date-time"},
        "e": {"type": "boolean", "format": "byte"},
        "f": {"type": "string", "format": "nope"},
        "g": {"format": "k8s-short-name"},
    });
    let ctx = fixture.ctx(&new, "", "v1");
    let found = def.hooks.warnings(&ctx, &new, None);
    let expected = ["nope", "hex", "int7", "byte"].map(|f| format!("unrecognized format \"{f}\""));
    assert_eq!(found, expected);
    assert!(def.hooks.warnings(&ctx, &new, Some(&new)).is_empty());
}
