//! What the access reviews share.

use super::selectors::Selectors;
use crate::{
    Deps,
    shared::{
        check, created, rules,
        value::{Fields, put},
    },
};
use kaji_auth::{Attributes, Decision, Outcome};
use kaji_meta::{
    GroupKind, Status,
    field::{Error, ErrorList, Path},
    validation,
};
use kaji_resource::{BoxFuture, CallHooks, CallRequest, Ctx, Hooks, UserInfo};
use serde_json::{Map, Value};

/// The API group.
pub const GROUP: &str = "authorization.k8s.io";

/// The subject of the access that is reviewed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// A user and groups named in the review.
    Named,
    /// The same, in one namespace only.
    NamedLocal,
    /// The caller.
    Caller,
}

/// The hooks of the three access reviews.
pub struct AccessReviews {
    /// The subject of the access.
    pub subject: Subject,
    /// `SubjectAccessReview`
    pub kind: &'static str,
    /// The authorizer.
    pub deps: Deps,
}

fn selector_rules(errs: &mut ErrorList, attributes: &Value) {
    for field in ["fieldSelector", "labelSelector"] {
        let (s, path) = (attributes.at(field), Path::new("spec.resourceAttributes").child(field));
        if s.is_null() {
            continue;
        }
        match (s.text("rawSelector").is_empty(), s.list("requirements").is_empty()) {
            (false, false) => {
                let text = "may not specified at the same time as requirements";
                errs.push(Error::invalid(&path.child("rawSelector"), s.text("rawSelector"), text));
            }
            (true, true) => {
                let text = format!("when {} is specified, requirements or rawSelector is required", path);
                errs.push(Error::required(&path.child("requirements"), text));
            }
            _ => {}
        }
        for (i, r) in s.list("requirements").iter().enumerate() {
            let at = path.child("requirements").index(i);
            let (key, values) = (at.child("key"), at.child("values"));
            if field == "fieldSelector" && r.text("key").is_empty() {
                errs.push(Error::required(&key, "must be specified"));
            }
            // Another operator may be one of a later release: the requirement is ignored then.
            match (r.text("operator"), r.list("values").is_empty()) {
                ("In" | "NotIn", true) => {
                    let text = "must be specified when `operator` is 'In' or 'NotIn'";
                    errs.push(Error::required(&values, text));
                }
                ("Exists" | "DoesNotExist", false) => {
                    let text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                    errs.push(Error::forbidden(&values, text));
                }
                _ => {}
            }
            if field == "labelSelector" {
                check::label_name(errs, &key, r.text("key"));
                for (i, value) in r.strings("values").enumerate() {
                    check::each(errs, &values.index(i), value, validation::is_valid_label_value(value));
                }
            }
        }
    }
}

impl AccessReviews {
    fn validate(&self, review: &Value) -> ErrorList {
        let (mut errs, spec, path) = (vec![], review.at("spec"), Path::new("spec"));
        let (resource, other) = (spec.at("resourceAttributes"), spec.at("nonResourceAttributes"));
        if !resource.is_null() && !other.is_null() {
            let text = "cannot be specified in combination with resourceAttributes";
            errs.push(Error::invalid(&path.child("nonResourceAttributes"), other.clone(), text));
        }
        if resource.is_null() && other.is_null() {
            let text = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            errs.push(Error::invalid(&path.child("resourceAttributes"), Value::Null, text));
        }
        if self.subject != Subject::Caller && spec.text("user").is_empty() && spec.list("groups").is_empty() {
            let text = "at least one of user or group must be specified";
            errs.push(Error::invalid(&path.child("user"), spec.text("user"), text));
        }
        selector_rules(&mut errs, resource);
        let local = self.subject == Subject::NamedLocal;
        let free = |k: &str| k == "managedFields" || k == "creationTimestamp" || (local && k == "namespace");
        let meta = review.map("metadata");
        if meta.into_iter().flatten().any(|(k, v)| !free(k) && !rules::is_zero(v)) {
            let text = if local { "must be empty except for namespace" } else { "must be empty" };
            errs.push(Error::invalid(&Path::new("metadata"), review.at("metadata").clone(), text));
        }
        if local {
            let namespace = resource.text("namespace");
            if !resource.is_null() && namespace != review.at("metadata").text("namespace") {
                let at = Path::new("spec.resourceAttributes.namespace");
                errs.push(Error::invalid(&at, namespace, "must match metadata.namespace"));
            }
            if !other.is_null() {
                let at = Path::new("spec.nonResourceAttributes");
                let ty = "io.k8s.api.authorization.v1.NonResourceAttributes";
                errs.push(check::invalid_struct(&at, ty, other, "disallowed on this kind of request"));
            }
        }
        errs
    }

    async fn review(&self, ctx: &Ctx<'_>, request: CallRequest<'_>) -> Result<(u16, Value), Status> {
        let mut review = request.body;
        if self.subject == Subject::NamedLocal {
            let meta = crate::shared::value::ensure_object(&mut review, "metadata");
            crate::shared::value::default_text(meta, "namespace", ctx.namespace);
        }
        let errors = self.validate(&review);
        if !errors.is_empty() {
            return Err(Status::invalid(&GroupKind::new(GROUP, self.kind), "", &errors));
        }
        if self.subject == Subject::NamedLocal && review.at("metadata").text("namespace") != ctx.namespace {
            let text = format!("spec.resourceAttributes.namespace must match namespace: {}", ctx.namespace);
            return Err(Status::bad_request(text));
        }
        let spec = review.at("spec");
        let named = (self.subject != Subject::Caller).then(|| named_user(spec));
        let selectors = Selectors::of(spec.at("resourceAttributes"));
        let attributes = attributes(named.as_ref().unwrap_or(ctx.user), spec, &selectors);
        let mut outcome = self.deps.authorizer.authorize(&attributes).await;
        outcome.error = selectors.evaluation_error(outcome.error.take());
        put(&mut review, "status", status(outcome));
        Ok((201, review))
    }
}

fn named_user(spec: &Value) -> UserInfo {
    let values =
        |v: &Value| v.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    UserInfo {
        name: spec.text("user").to_owned(),
        uid: spec.text("uid").to_owned(),
        groups: spec.strings("groups").map(str::to_owned).collect(),
        extra: spec.map("extra").into_iter().flatten().map(|(k, v)| (k.clone(), values(v))).collect(),
    }
}

fn attributes<'a>(user: &'a UserInfo, spec: &'a Value, selectors: &'a Selectors) -> Attributes<'a> {
    let r = spec.at("resourceAttributes");
    if r.is_null() {
        let n = spec.at("nonResourceAttributes");
        return Attributes::path(user, n.text("verb"), n.text("path"));
    }
    let version = match r.text("version") {
        "" => "*",
        version => version,
    };
    Attributes {
        namespace: r.text("namespace"),
        version,
        subresource: r.text("subresource"),
        name: r.text("name"),
        field_selector: selectors.field.parsed.as_ref(),
        label_selector: selectors.label.parsed.as_ref(),
        ..Attributes::resource(user, r.text("verb"), r.text("group"), r.text("resource"))
    }
}

fn status(outcome: Outcome) -> Value {
    let mut v = Value::Object(Map::new());
    put(&mut v, "allowed", outcome.allowed());
    if outcome.decision == Decision::Deny {
        put(&mut v, "denied", true);
    }
    if !outcome.reason.is_empty() {
        put(&mut v, "reason", outcome.reason.into_owned());
    }
    if let Some(error) = outcome.error.filter(|e| !e.is_empty()) {
        put(&mut v, "evaluationError", error);
    }
    v
}

impl Hooks for AccessReviews {
    fn calls(&self) -> &dyn CallHooks {
        self
    }

    fn row(&self, _version: &str, object: &Value, _now: jiff::Timestamp) -> Vec<Value> {
        created::row(object)
    }
}

impl CallHooks for AccessReviews {
    fn call<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        request: CallRequest<'a>,
    ) -> BoxFuture<'a, Result<(u16, Value), Status>> {
        Box::pin(self.review(ctx, request))
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Deps,
        authorization::{
            localsubjectaccessreviews, selfsubjectaccessreviews, selfsubjectrulesreviews,
            subjectaccessreviews,
        },
        shared::testing::{TestContext, call, deps},
    };
    use expect_test::expect;
    use kaji_auth::{Attributes, Authorizer, Outcome, PolicyRule, Rules};
    use kaji_resource::{BoxFuture, UserInfo};
    use serde_json::{Value, json};
    use std::sync::Arc;

    struct OnlyAlice;

    impl Authorizer for OnlyAlice {
        fn authorize<'a>(&'a self, a: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
            let fields = a.field_selector.map(ToString::to_string).unwrap_or_default();
            let labels = a.label_selector.map(ToString::to_string).unwrap_or_default();
            let reason = [a.verb, a.resource, &fields, &labels].join(" ").trim_end().to_owned();
            let outcome = match a.user.name.as_str() {
                "alice" => Outcome::allow(reason),
                _ => Outcome { reason: reason.into(), ..Outcome::default() },
            };
            Box::pin(std::future::ready(outcome))
        }
        fn rules<'a>(&'a self, _: &'a UserInfo, _: &'a str) -> BoxFuture<'a, Rules> {
            let get = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
            let path = json!({"verbs": ["get"], "nonResourceURLs": ["/x"]});
            let rules = [get, path].iter().map(PolicyRule::from_value).collect();
            let error = Some("lost".into());
            Box::pin(std::future::ready(Rules { rules, incomplete: true, error }))
        }
    }

    /// Allows everything, and says about which version and for which extra attributes of the user.
    struct Echo;

    impl Authorizer for Echo {
        fn authorize<'a>(&'a self, a: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
            let outcome = Outcome::allow(format!("{} {:?}", a.version, a.user.extra));
            Box::pin(std::future::ready(outcome))
        }
        fn rules<'a>(&'a self, _: &'a UserInfo, _: &'a str) -> BoxFuture<'a, Rules> {
            Box::pin(std::future::ready(Rules::default()))
        }
    }

    #[test]
    fn no_version_is_every_version_and_keys_of_extra_stay() {
        let (test, deps) = (TestContext::default(), Deps { authorizer: Arc::new(Echo), ..deps() });
        let reviews = [
            selfsubjectaccessreviews::def(&deps),
            subjectaccessreviews::def(&deps),
            localsubjectaccessreviews::def(&deps),
        ];
        let mut seen = vec![];
        for review in &reviews {
            for version in ["", "v1"] {
                let local = review.kind == "LocalSubjectAccessReview";
                let namespace = if local { "m" } else { "" };
                let attributes =
                    json!({"verb": "get", "resource": "pods", "namespace": namespace, "version": version});
                let body = json!({"metadata": {"namespace": namespace}, "spec": {"user": "bob",
                    "extra": {"Scopes": ["A", "b"]}, "resourceAttributes": attributes}});
                seen.push(text(call(&test, review, body)));
            }
        }
        expect![[r#"
            {"allowed":true,"reason":"* {}"}
            {"allowed":true,"reason":"v1 {}"}
            {"allowed":true,"reason":"* {\"Scopes\": [\"A\", \"b\"]}"}
            {"allowed":true,"reason":"v1 {\"Scopes\": [\"A\", \"b\"]}"}
            {"allowed":true,"reason":"* {\"Scopes\": [\"A\", \"b\"]}"}
            {"allowed":true,"reason":"v1 {\"Scopes\": [\"A\", \"b\"]}"}"#]]
        .assert_eq(&seen.join("\n"));
    }

    fn with() -> Deps {
        Deps { authorizer: Arc::new(OnlyAlice), ..deps() }
    }

    fn text(answer: Result<(u16, Value), kaji_meta::Status>) -> String {
        answer.map_or_else(|s| s.message, |(_, v)| v["status"].to_string())
    }

    #[test]
    fn reads_field_and_label_selectors() {
        let deps = with();
        let review = selfsubjectaccessreviews::def(&deps);
        let ask = |field: Value, label: Value| {
            let mut attributes = json!({"verb": "list", "resource": "pods"});
            if !field.is_null() {
                attributes["fieldSelector"] = field;
            }
            if !label.is_null() {
                attributes["labelSelector"] = label;
            }
            text(call(&TestContext::default(), &review, json!({"spec": {"resourceAttributes": attributes}})))
        };
        let one = |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        let all = [
            ask(json!({"rawSelector": "spec.nodeName=a"}), Value::Null),
            ask(json!({"rawSelector": "a&b"}), Value::Null),
            ask(Value::Null, json!({"rawSelector": "a in (b,c),!d"})),
            ask(Value::Null, json!({"rawSelector": "a in ("})),
            ask(json!({"requirements": [one("k", "In", &["a,b"]), one("l", "NotIn", &["c"])]}), Value::Null),
            ask(json!({"requirements": [one("k", "In", &["a"]), one("l", "Exists", &[])]}), Value::Null),
            ask(json!({"requirements": [one("k", "In", &["a", "b"])]}), Value::Null),
            ask(
                Value::Null,
                json!({"requirements": [one("k", "In", &["b", "a"]), one("l", "Exists", &[]), one("m", "DoesNotExist", &[]), one("n", "NotIn", &["x"])]}),
            ),
            ask(Value::Null, json!({"requirements": [one("k", "In", &[]), one("l", "Exists", &[])]})),
        ];
        expect![[r#"
            {"allowed":true,"reason":"list pods spec.nodeName=a"}
            {"allowed":true,"evaluationError":"spec.resourceAttributes.fieldSelector ignored due to parse error","reason":"list pods"}
            {"allowed":true,"reason":"list pods  a in (b,c),!d"}
            {"allowed":true,"evaluationError":"spec.resourceAttributes.labelSelector ignored due to parse error","reason":"list pods"}
            {"allowed":true,"reason":"list pods k=a\\,b,l!=c"}
            {"allowed":true,"evaluationError":"spec.resourceAttributes.fieldSelector partially ignored due to parse error","reason":"list pods k=a"}
            {"allowed":true,"evaluationError":"spec.resourceAttributes.fieldSelector ignored due to parse error","reason":"list pods"}
            {"allowed":true,"reason":"list pods  k in (a,b),l,!m,n notin (x)"}
            SelfSubjectAccessReview.authorization.k8s.io "" is invalid: spec.resourceAttributes.labelSelector.requirements[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'"#]].assert_eq(&all.join("\n"));
    }

    #[test]
    fn answers_reviews_of_users_and_rules() {
        let (fixture, deps) = (TestContext::default(), with());
        let get = json!({"verb": "get", "resource": "pods", "namespace": "n"});
        let sar = subjectaccessreviews::def(&deps);
        let all = [
            text(call(
                &fixture,
                &selfsubjectaccessreviews::def(&deps),
                json!({"spec": {"resourceAttributes": get}}),
            )),
            text(call(&fixture, &sar, json!({"spec": {"user": "bob", "resourceAttributes": get}}))),
            text(call(
                &fixture,
                &sar,
                json!({"metadata": {"name": "x"}, "spec": {"resourceAttributes": get, "nonResourceAttributes": {}}}),
            )),
            text(call(
                &fixture,
                &localsubjectaccessreviews::def(&deps),
                json!({"metadata": {"namespace": "m"}, "spec": {"user": "a", "resourceAttributes": get}}),
            )),
            text(call(&fixture, &selfsubjectrulesreviews::def(&deps), json!({"spec": {"namespace": "n"}}))),
            text(call(&fixture, &selfsubjectrulesreviews::def(&deps), json!({"spec": {}}))),
        ];
        expect![[r#"
            {"allowed":true,"reason":"get pods"}
            {"allowed":false,"reason":"get pods"}
            SubjectAccessReview.authorization.k8s.io "" is invalid: [spec.nonResourceAttributes: Invalid value: {}: cannot be specified in combination with resourceAttributes, spec.user: Invalid value: "": at least one of user or group must be specified, metadata: Invalid value: {"name":"x"}: must be empty]
            LocalSubjectAccessReview.authorization.k8s.io "" is invalid: spec.resourceAttributes.namespace: Invalid value: "n": must match metadata.namespace
            {"evaluationError":"lost","incomplete":true,"nonResourceRules":[{"nonResourceURLs":["/x"],"verbs":["get"]}],"resourceRules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}
            no namespace on request"#]]
        .assert_eq(&all.join("\n"));
    }
}
