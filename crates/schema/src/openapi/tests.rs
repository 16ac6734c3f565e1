//! Tests of `openapi`: fixtures in, expectations out.

use super::*;
use expect_test::expect;

const VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

fn docs(ty: &str, field: Option<&str>) -> Option<String> {
    let short = ty.rsplit('.').next()?;
    matches!(short, "Deployment" | "DeploymentSpec").then(|| format!("{short} {}", field.unwrap_or("type")))
}

fn deployments() -> Group<'static> {
    let model = Model::of_kind("apps", "v1", "Deployment").unwrap();
    let scale = Model::of_kind("autoscaling", "v1", "Scale");
    Group {
        group_version: GroupVersion::new("apps", "v1"),
        resources: vec![Resource {
            plural: "deployments",
            kind: "Deployment",
            list_kind: "DeploymentList",
            namespaced: true,
            verbs: VERBS,
            model,
            subresources: vec![Subresource {
                name: "scale",
                gvk: ("autoscaling", "v1", "Scale"),
                verbs: &["get", "patch", "update"],
                model: scale,
            }],
        }],
    }
}

#[test]
fn v3_of_a_built_in() {
    let doc = v3(&deployments(), &docs);
    let paths: Vec<String> = doc["paths"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(p, item)| {
            let ops = item.as_object().unwrap().iter().filter(|(k, _)| *k != "parameters");
            let ids: Vec<&str> = ops.map(|(_, o)| o["operationId"].as_str().unwrap()).collect();
            format!("{p} {}\n", ids.join(" "))
        })
        .collect();
    expect![[r#"
        /apis/apps/v1/ getAppsV1APIResources
        /apis/apps/v1/deployments listAppsV1DeploymentForAllNamespaces
        /apis/apps/v1/namespaces/{namespace}/deployments deleteAppsV1CollectionNamespacedDeployment listAppsV1NamespacedDeployment createAppsV1NamespacedDeployment
        /apis/apps/v1/namespaces/{namespace}/deployments/{name} deleteAppsV1NamespacedDeployment readAppsV1NamespacedDeployment patchAppsV1NamespacedDeployment replaceAppsV1NamespacedDeployment
        /apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale readAppsV1NamespacedDeploymentScale patchAppsV1NamespacedDeploymentScale replaceAppsV1NamespacedDeploymentScale
        /apis/apps/v1/watch/deployments watchAppsV1DeploymentListForAllNamespaces
        /apis/apps/v1/watch/namespaces/{namespace}/deployments watchAppsV1NamespacedDeploymentList
        /apis/apps/v1/watch/namespaces/{namespace}/deployments/{name} watchAppsV1NamespacedDeployment
    "#]]
    .assert_eq(&paths.concat());
    let patch = &doc["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
    expect![[r##"
        {"description":"partially update the specified Deployment","operationId":"patchAppsV1NamespacedDeployment","parameters":[{"in":"query","name":"dryRun","schema":{"type":"string","uniqueItems":true}},{"in":"query","name":"fieldManager","schema":{"type":"string","uniqueItems":true}},{"in":"query","name":"fieldValidation","schema":{"type":"string","uniqueItems":true}},{"in":"query","name":"force","schema":{"type":"boolean","uniqueItems":true}}],"requestBody":{"content":{"application/apply-patch+yaml":{"schema":{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.Patch"}},"application/json-patch+json":{"schema":{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.Patch"}},"application/merge-patch+json":{"schema":{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.Patch"}},"application/strategic-merge-patch+json":{"schema":{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.Patch"}}},"required":true},"responses":{"200":{"content":{"application/json":{"schema":{"$ref":"#/components/schemas/io.k8s.api.apps.v1.Deployment"}},"application/vnd.kubernetes.protobuf":{"schema":{"$ref":"#/components/schemas/io.k8s.api.apps.v1.Deployment"}},"application/yaml":{"schema":{"$ref":"#/components/schemas/io.k8s.api.apps.v1.Deployment"}}},"description":"OK"},"201":{"content":{"application/json":{"schema":{"$ref":"#/components/schemas/io.k8s.api.apps.v1.Deployment"}},"application/vnd.kubernetes.protobuf":{"schema":{"$ref":"#/components/schemas/io.k8s.api.apps.v1.Deployment"}},"application/yaml":{"schema":{"$ref":"#/components/schemas/io.k8s.api.apps.v1.Deployment"}}},"description":"Created"},"401":{"description":"Unauthorized"}},"tags":["apps_v1"],"x-kubernetes-action":"patch","x-kubernetes-group-version-kind":{"group":"apps","kind":"Deployment","version":"v1"}}"##]]
    .assert_eq(&patch.to_string());
    let schemas = &doc["components"]["schemas"];
    expect![[r##"{"description":"DeploymentSpec type","properties":{"minReadySeconds":{"description":"DeploymentSpec minReadySeconds","format":"int32","type":"integer"},"paused":{"description":"DeploymentSpec paused","type":"boolean"},"progressDeadlineSeconds":{"description":"DeploymentSpec progressDeadlineSeconds","format":"int32","type":"integer"},"replicas":{"description":"DeploymentSpec replicas","format":"int32","type":"integer"},"revisionHistoryLimit":{"description":"DeploymentSpec revisionHistoryLimit","format":"int32","type":"integer"},"selector":{"allOf":[{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"}],"description":"DeploymentSpec selector"},"strategy":{"allOf":[{"$ref":"#/components/schemas/io.k8s.api.apps.v1.DeploymentStrategy"}],"default":{},"description":"DeploymentSpec strategy","x-kubernetes-patch-strategy":"retainKeys"},"template":{"allOf":[{"$ref":"#/components/schemas/io.k8s.api.core.v1.PodTemplateSpec"}],"default":{},"description":"DeploymentSpec template"}},"required":["selector","template"],"type":"object"}"##]].assert_eq(&schemas["io.k8s.api.apps.v1.DeploymentSpec"].to_string());
    expect![[r#"{"properties":{"containerPort":{"default":0,"format":"int32","type":"integer"},"hostIP":{"type":"string"},"hostPort":{"format":"int32","type":"integer"},"name":{"type":"string"},"protocol":{"default":"TCP","enum":["SCTP","TCP","UDP"],"type":"string"}},"required":["containerPort"],"type":"object"}"#]].assert_eq(&schemas["io.k8s.api.core.v1.ContainerPort"].to_string());
    assert_eq!(
        schemas["io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"]["x-kubernetes-group-version-kind"][1]["group"],
        "apps"
    );
    no_dangling(&doc, &doc, "/components/schemas/");
}

/// Every reference has its definition.
fn no_dangling(doc: &Value, v: &Value, prefix: &str) {
    match v {
        Value::Object(o) => {
            if let Some(r) = o.get("$ref").and_then(Value::as_str) {
                let pointer = r.strip_prefix('#').unwrap();
                assert!(pointer.starts_with(prefix) || pointer.starts_with("/parameters/"), "{r}");
                assert!(doc.pointer(pointer).is_some_and(Value::is_object), "{r}");
            }
            o.values().for_each(|c| no_dangling(doc, c, prefix));
        }
        Value::Array(a) => a.iter().for_each(|c| no_dangling(doc, c, prefix)),
        _ => {}
    }
}

fn crontab() -> Custom {
    Custom {
        group: "stable.example.com".into(),
        version: "v1".into(),
        kind: "CronTab".into(),
        list_kind: "CronTabList".into(),
        plural: "crontabs".into(),
        schema: Some(json!({"type": "object", "description": "a CronTab", "properties": {"spec": {
        "type": "object", "required": ["a", "n"], "properties": {
            "a": {"type": "string", "description": "A", "default": "x", "anyOf": [{"minLength": 1}]},
            "n": {"type": "string", "nullable": true},
            "ios": {"x-kubernetes-int-or-string": true},
            "raw": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"b": {"type": "string"}}},
            "pod": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}}
        }}}})),
        selectable_fields: vec![".spec.a".into()],
    }
}

fn custom_group(c: &Custom) -> Group<'_> {
    Group {
        group_version: GroupVersion::new("stable.example.com", "v1"),
        resources: vec![Resource {
            plural: "crontabs",
            kind: "CronTab",
            list_kind: "CronTabList",
            namespaced: true,
            verbs: VERBS,
            model: Model::Custom(c),
            subresources: vec![],
        }],
    }
}

#[test]
fn documents_custom_resources() {
    let c = crontab();
    let doc = v3(&custom_group(&c), &docs);
    no_dangling(&doc, &doc, "/components/schemas/");
    expect![[r##"{"description":"a CronTab","properties":{"apiVersion":{"type":"string"},"kind":{"type":"string"},"metadata":{"allOf":[{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}]},"spec":{"properties":{"a":{"anyOf":[{"minLength":1}],"default":"x","description":"A","type":"string"},"ios":{"anyOf":[{"type":"integer"},{"type":"string"}],"x-kubernetes-int-or-string":true},"n":{"nullable":true,"type":"string"},"pod":{"properties":{"apiVersion":{"description":"apiVersion defines the versioned schema of this representation of an object. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources","type":"string"},"kind":{"description":"kind is a string value representing the type of this object. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds","type":"string"},"metadata":{"allOf":[{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}]},"spec":{"type":"object"}},"required":["kind","apiVersion"],"type":"object","x-kubernetes-embedded-resource":true},"raw":{"properties":{"b":{"type":"string"}},"type":"object","x-kubernetes-preserve-unknown-fields":true}},"required":["a","n"],"type":"object"}},"type":"object","x-kubernetes-group-version-kind":[{"group":"stable.example.com","kind":"CronTab","version":"v1"}],"x-kubernetes-selectable-fields":[{"fieldPath":"spec.a"}]}"##]].assert_eq(&doc["components"]["schemas"]["com.example.stable.v1.CronTab"].to_string());
    let doc = v2(&[deployments(), custom_group(&c)], &[], &docs);
    no_dangling(&doc, &doc, "/definitions/");
    expect![[r##"{"description":"a CronTab","properties":{"apiVersion":{"type":"string"},"kind":{"type":"string"},"metadata":{"$ref":"#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"},"spec":{"properties":{"a":{"description":"A","type":"string"},"ios":{"x-kubernetes-int-or-string":true},"n":{},"pod":{"properties":{"apiVersion":{"description":"apiVersion defines the versioned schema of this representation of an object. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources","type":"string"},"kind":{"description":"kind is a string value representing the type of this object. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds","type":"string"},"metadata":{"$ref":"#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"},"spec":{"type":"object"}},"required":["kind","apiVersion"],"type":"object","x-kubernetes-embedded-resource":true},"raw":{"x-kubernetes-preserve-unknown-fields":true}},"required":["a"],"type":"object"}},"type":"object","x-kubernetes-group-version-kind":[{"group":"stable.example.com","kind":"CronTab","version":"v1"}],"x-kubernetes-selectable-fields":[{"fieldPath":"spec.a"}]}"##]].assert_eq(&doc["definitions"]["com.example.stable.v1.CronTab"].to_string());
    expect![[r##"{"description":"CronTabList is a list of CronTab","properties":{"apiVersion":{"type":"string"},"items":{"description":"List of crontabs. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md","items":{"$ref":"#/definitions/com.example.stable.v1.CronTab"},"type":"array"},"kind":{"type":"string"},"metadata":{"$ref":"#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta"}},"required":["items"],"type":"object","x-kubernetes-group-version-kind":[{"group":"stable.example.com","kind":"CronTabList","version":"v1"}],"x-kubernetes-selectable-fields":[{"fieldPath":"spec.a"}]}"##]].assert_eq(&doc["definitions"]["com.example.stable.v1.CronTabList"].to_string());
    expect![[r##"{"description":"DeploymentSpec type","properties":{"minReadySeconds":{"description":"DeploymentSpec minReadySeconds","format":"int32","type":"integer"},"paused":{"description":"DeploymentSpec paused","type":"boolean"},"progressDeadlineSeconds":{"description":"DeploymentSpec progressDeadlineSeconds","format":"int32","type":"integer"},"replicas":{"description":"DeploymentSpec replicas","format":"int32","type":"integer"},"revisionHistoryLimit":{"description":"DeploymentSpec revisionHistoryLimit","format":"int32","type":"integer"},"selector":{"$ref":"#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector","description":"DeploymentSpec selector"},"strategy":{"$ref":"#/definitions/io.k8s.api.apps.v1.DeploymentStrategy","description":"DeploymentSpec strategy","x-kubernetes-patch-strategy":"retainKeys"},"template":{"$ref":"#/definitions/io.k8s.api.core.v1.PodTemplateSpec","description":"DeploymentSpec template"}},"required":["selector","template"],"type":"object"}"##]].assert_eq(&doc["definitions"]["io.k8s.api.apps.v1.DeploymentSpec"].to_string());
    assert!(
        doc["paths"]["/apis/stable.example.com/v1/crontabs"]["get"]["operationId"]
            == "listStableExampleComV1CronTabForAllNamespaces"
    );
    let preserving =
        Custom { schema: Some(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})), ..c };
    let doc = v2(&[custom_group(&preserving)], &[], &docs);
    assert_eq!(doc["definitions"]["com.example.stable.v1.CronTab"]["properties"], Value::Null);
}

/// Discovery, the version and the keys of tokens are documented besides resources.
#[test]
fn documents_paths_of_no_group_version() {
    let roots = Root::all(["", "apps", "storage.k8s.io", "apps"]);
    let mut out = String::new();
    for root in &roots {
        let doc = root_v3(root, &docs);
        no_dangling(&doc, &doc, "/components/schemas/");
        let schemas = doc["components"]["schemas"].as_object().into_iter().flat_map(Map::keys);
        let schemas: Vec<&str> = schemas.filter_map(|name| name.rsplit('.').next()).collect();
        out += &format!("{} {} {}\n", root.key(), doc["paths"], schemas.join(" "));
    }
    expect![[r##"
        api {"/api/":{"get":{"description":"get available API versions","operationId":"getCoreAPIVersions","responses":{"200":{"content":{"application/json":{"schema":{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.APIVersions"}},"application/vnd.kubernetes.protobuf":{"schema":{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.APIVersions"}},"application/yaml":{"schema":{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.APIVersions"}}},"description":"OK"},"401":{"description":"Unauthorized"}},"tags":["core"]}}} APIVersions ServerAddressByClientCIDR
        apis {"/apis/":{"get":{"description":"get available API versions","operationId":"getAPIVersions","responses":{"200":{"content":{"application/json":{"schema":{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.APIGroupList"}},"application/vnd.kubernetes.protobuf":{"schema":{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.APIGroupList"}},"application/yaml":{"schema":{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.APIGroupList"}}},"description":"OK"},"401":{"description":"Unauthorized"}},"tags":["apis"]}}} APIGroup APIGroupList GroupVersionForDiscovery ServerAddressByClientCIDR
        version {"/version/":{"get":{"description":"get the version information for this server","operationId":"getCodeVersion","responses":{"200":{"content":{"application/json":{"schema":{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.version.Info"}}},"description":"OK"},"401":{"description":"Unauthorized"}},"tags":["version"]}}} Info
        .well-known/openid-configuration {"/.well-known/openid-configuration/":{"get":{"description":"get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'","operationId":"getServiceAccountIssuerOpenIDConfiguration","responses":{"200":{"content":{"application/json":{"schema":{"type":"string"}}},"description":"OK"},"401":{"description":"Unauthorized"}},"tags":["WellKnown"]}}} 
        openid/v1/jwks {"/openid/v1/jwks/":{"get":{"description":"get service account issuer OpenID JSON Web Key Set (contains public token verification keys)","operationId":"getServiceAccountIssuerOpenIDKeyset","responses":{"200":{"content":{"application/jwk-set+json":{"schema":{"type":"string"}}},"description":"OK"},"401":{"description":"Unauthorized"}},"tags":["openid"]}}} 
        apis/apps {"/apis/apps/":{"get":{"description":"get information of a group","operationId":"getAppsAPIGroup","responses":{"200":{"content":{"application/json":{"schema":{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.APIGroup"}},"application/vnd.kubernetes.protobuf":{"schema":{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.APIGroup"}},"application/yaml":{"schema":{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.APIGroup"}}},"description":"OK"},"401":{"description":"Unauthorized"}},"tags":["apps"]}}} APIGroup GroupVersionForDiscovery ServerAddressByClientCIDR
        apis/storage.k8s.io {"/apis/storage.k8s.io/":{"get":{"description":"get information of a group","operationId":"getStorageAPIGroup","responses":{"200":{"content":{"application/json":{"schema":{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.APIGroup"}},"application/vnd.kubernetes.protobuf":{"schema":{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.APIGroup"}},"application/yaml":{"schema":{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.APIGroup"}}},"description":"OK"},"401":{"description":"Unauthorized"}},"tags":["storage"]}}} APIGroup GroupVersionForDiscovery ServerAddressByClientCIDR
    "##]].assert_eq(&out);
    let doc = v2(&[deployments()], &roots, &docs);
    no_dangling(&doc, &doc, "/definitions/");
    for path in ["/apis/apps/", "/apis/apps/v1/", "/openid/v1/jwks/"] {
        assert!(doc["paths"][path]["get"]["operationId"].is_string(), "{path}");
    }
    expect![[r#"{"get":{"description":"get service account issuer OpenID JSON Web Key Set (contains public token verification keys)","operationId":"getServiceAccountIssuerOpenIDKeyset","produces":["application/jwk-set+json"],"responses":{"200":{"description":"OK","schema":{"type":"string"}},"401":{"description":"Unauthorized"}},"schemes":["https"],"tags":["openid"]}}"#]].assert_eq(&doc["paths"]["/openid/v1/jwks/"].to_string());
    assert_eq!(doc["paths"]["/apis/apps/v1/"]["get"]["consumes"][2], "application/vnd.kubernetes.protobuf");
}

/// Upstream documents the operations of custom resources with less than those of built-in ones.
#[test]
fn documents_operations_of_custom_resources() {
    let c = crontab();
    let mut group = custom_group(&c);
    let sub = |name, gvk, model| Subresource { name, gvk, verbs: &["get", "patch", "update"], model };
    let scale = Model::of_kind("autoscaling", "v1", "Scale");
    group.resources[0].subresources.push(sub("scale", ("autoscaling", "v1", "Scale"), scale));
    let doc = v3(&group, &docs);
    assert_eq!(
        (&doc["info"]["title"], &doc["components"]["securitySchemes"]),
        (&json!("Kubernetes CRD Swagger"), &Value::Null)
    );
    let mut out = String::new();
    for (path, item) in doc["paths"].as_object().unwrap() {
        for (method, op) in item.as_object().unwrap().iter().filter(|(method, _)| *method != "parameters") {
            let parameters = op["parameters"].as_array().into_iter().flatten();
            let parameters: Vec<&str> = parameters.filter_map(|p| p["name"].as_str()).collect();
            let codes: Vec<&String> = op["responses"].as_object().unwrap().keys().collect();
            let (body, kind) =
                (op["requestBody"].is_object(), &op["x-kubernetes-group-version-kind"]["kind"]);
            let path = path.rsplit("crontabs").next().unwrap();
            out += &format!("{method} …{path} {kind} {parameters:?} body: {body} {codes:?}\n");
        }
    }
    expect![[r#"
        get … "CronTab" [] body: false ["200", "401"]
        delete … "CronTab" ["allowWatchBookmarks", "continue", "fieldSelector", "labelSelector", "limit", "resourceVersion", "resourceVersionMatch", "sendInitialEvents", "shardSelector", "timeoutSeconds", "watch"] body: false ["200", "401"]
        get … "CronTab" ["allowWatchBookmarks", "continue", "fieldSelector", "labelSelector", "limit", "resourceVersion", "resourceVersionMatch", "sendInitialEvents", "shardSelector", "timeoutSeconds", "watch"] body: false ["200", "401"]
        post … "CronTab" ["dryRun", "fieldManager", "fieldValidation"] body: true ["200", "201", "202", "401"]
        delete …/{name} "CronTab" ["dryRun", "gracePeriodSeconds", "ignoreStoreReadErrorWithClusterBreakingPotential", "orphanDependents", "propagationPolicy"] body: true ["200", "202", "401"]
        get …/{name} "CronTab" ["resourceVersion"] body: false ["200", "401"]
        patch …/{name} "CronTab" ["dryRun", "fieldManager", "fieldValidation", "force"] body: true ["200", "401"]
        put …/{name} "CronTab" ["dryRun", "fieldManager", "fieldValidation"] body: true ["200", "201", "401"]
        get …/{name}/scale "CronTab" ["resourceVersion"] body: false ["200", "401"]
        patch …/{name}/scale "CronTab" ["dryRun", "fieldManager", "fieldValidation", "force"] body: true ["200", "401"]
        put …/{name}/scale "CronTab" ["dryRun", "fieldManager", "fieldValidation"] body: true ["200", "201", "401"]
    "#]].assert_eq(&out);
}

#[test]
fn protobuf_has_the_bytes() {
    let doc = json!({"swagger": "2.0", "definitions": {"a.B": {"type": "object", "properties": {"x": {"$ref": "#/definitions/a.C"}},
        "x-kubernetes-group-version-kind": [{"group": "g"}]}}});
    let bytes = kaji_meta::text::hex(&to_protobuf(&doc));
    expect!["0a03322e304a640a620a03612e42125bb201080a066f626a656374ca011a0a180a017812130a11232f646566696e6974696f6e732f612e43fa01300a1f782d6b756265726e657465732d67726f75702d76657273696f6e2d6b696e64120d120b2d2067726f75703a20670a"].assert_eq(&bytes);
}
