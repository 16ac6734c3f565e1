//! `PodNodeSelector`: new pods get the node selector of their namespace, or the cluster's, and may select nodes only by what
//! the configuration lists for the namespace. Source: kubernetes `plugin/pkg/admission/podnodeselector`.
//!
//! Invariant: a pod's own selector never contradicts that of its namespace.

use crate::{config::Configuration, find, plain_error};
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{GroupResource, Path, Status, field, object, validation};
use kaji_resource::BoxFuture;
use serde_json::Value;
use std::collections::BTreeMap;

const ANNOTATION: &str = "scheduler.alpha.kubernetes.io/node-selector";
const CLUSTER: &str = "clusterDefaultNodeSelector";
const FIELD: &str = "podNodeSelectorPluginConfig";

type Labels = BTreeMap<String, String>;

/// The plugin: selectors as text, by namespace; the cluster's default is one of them.
#[derive(Default)]
pub(super) struct PodNodeSelector(BTreeMap<String, String>);

impl PodNodeSelector {
    /// With its part of the `AdmissionConfiguration`, which has no kind.
    ///
    /// # Errors
    /// What is wrong with that, in words.
    pub(super) fn configured(file: Option<Configuration<'_>>) -> Result<Self, String> {
        let Some(file) = file else { return Ok(PodNodeSelector::default()) };
        let fields = file.without_kind();
        // Go takes the names of fields in any case.
        let found = fields.as_object().and_then(|f| f.iter().find(|(k, _)| k.eq_ignore_ascii_case(FIELD)));
        match found {
            None | Some((_, Value::Null)) => Ok(PodNodeSelector::default()),
            Some((_, selectors)) => serde_json::from_value(selectors.clone())
                .map(PodNodeSelector)
                .map_err(|error| format!("{FIELD}: {error}")),
        }
    }

    /// The labels that a namespace's pods select nodes by.
    async fn of_namespace(&self, a: &Attributes<'_>) -> Result<Labels, Status> {
        let namespace = find(a, &GroupResource::new("", "namespaces"), a.namespace).await?;
        let Some(namespace) = namespace else {
            return Err(Status::internal(format!("namespace {} does not exist", a.namespace)));
        };
        let own = object::annotation(&namespace, ANNOTATION);
        labels(own.unwrap_or_else(|| self.selector(CLUSTER))).map_err(plain_error)
    }

    fn selector(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// What a pod selects nodes by, with what its namespace adds.
    async fn merged(&self, a: &Attributes<'_>) -> Result<Labels, Status> {
        let pod = a.new_object().unwrap_or(&Value::Null);
        let refused = |text: &str| Status::forbidden(&a.group_resource(), object::name(pod), text);
        let mut all = self.of_namespace(a).await?;
        for (key, value) in object::str_map_at(pod, &["spec", "nodeSelector"]) {
            if all.insert(key.to_owned(), value.to_owned()).is_some_and(|before| before != value) {
                let text = "pod node label selector conflicts with its namespace node label selector";
                return Err(refused(text));
            }
        }
        Ok(all)
    }

    fn allowed(&self, a: &Attributes<'_>, selector: &Labels) -> Result<(), Status> {
        let allowed = labels(self.selector(a.namespace)).map_err(plain_error)?;
        if allowed.is_empty() || selector.iter().all(|(key, value)| allowed.get(key) == Some(value)) {
            return Ok(());
        }
        let name = a.new_object().map_or("", object::name);
        let text = "pod node label selector labels conflict with its namespace whitelist";
        Err(Status::forbidden(&a.group_resource(), name, text))
    }
}

impl Admission for PodNodeSelector {
    fn name(&self) -> &'static str {
        "PodNodeSelector"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::BOTH.when(operation == Operation::Create && (group, resource) == ("", "pods"))
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.subresource.is_empty()
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let selector = self.merged(a).await?;
            self.allowed(a, &selector)?;
            if let Some(pod) = a.object.as_deref_mut().filter(|_| !selector.is_empty()) {
                let selector: serde_json::Map<String, Value> =
                    selector.into_iter().map(|(key, value)| (key, value.into())).collect();
                object::set_at(pod, &["spec", "nodeSelector"], selector);
            }
            Ok(())
        })
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            self.merged(a).await?;
            let pod = a.new_object().unwrap_or(&Value::Null);
            let own = object::str_map_at(pod, &["spec", "nodeSelector"]);
            self.allowed(a, &own.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
        })
    }
}

/// The labels of a selector of the form `a=b,c=d`. Upstream's `ConvertSelectorToLabelsMap`.
fn labels(selector: &str) -> Result<Labels, String> {
    let mut all = Labels::new();
    if selector.is_empty() {
        return Ok(all);
    }
    for part in selector.split(',') {
        let sides: Vec<&str> = part.split('=').collect();
        let [key, value] = sides.as_slice() else {
            return Err(format!("invalid selector: [{}]", sides.join(" ")));
        };
        let (key, value) = (key.trim(), value.trim());
        let invalid = |path: &Path, text: &str, messages: Vec<String>| match messages.is_empty() {
            true => Ok(()),
            false => Err(field::Error::invalid(path, text, messages.join("; ")).to_string()),
        };
        invalid(&Path::root(), key, validation::is_qualified_name(key))?;
        invalid(&Path::root().key(key), value, validation::is_valid_label_value(value))?;
        all.insert(key.to_owned(), value.to_owned());
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::Request;
    use expect_test::expect;
    use kaji_resource::Scope;
    use serde_json::json;

    /// What becomes of a pod's selector, with one of its namespace.
    async fn created(config: Value, namespace: Option<&str>, selector: Value) -> String {
        let plugin = PodNodeSelector(serde_json::from_value(config).unwrap());
        let mut request = Request::of("", "v1", "Pod", "pods", Scope::Namespaced);
        let annotations = namespace.map(|text| json!({ANNOTATION: text}));
        let namespace = json!({"metadata": {"name": "n", "annotations": annotations}});
        request.api.put(&GroupResource::new("", "namespaces"), namespace);
        request.object = Some(json!({"metadata": {"name": "p"}, "spec": {"nodeSelector": selector}}));
        let result = request.with(async |a| plugin.admit(a).await).await;
        let valid = request.with(async |a| plugin.validate(a).await).await;
        if result.is_ok() {
            assert_eq!(valid, Ok(()));
        }
        let pod = request.object.unwrap();
        result.map_or_else(
            |status| format!("{} {:?} {status}", status.code, status.reason),
            |()| pod["spec"]["nodeSelector"].to_string(),
        )
    }

    #[tokio::test]
    async fn selectors_are_merged_with_those_of_the_namespace_or_the_cluster() {
        let config = || json!({CLUSTER: "env=dev", "other": "env=prod"});
        let seen = [
            created(json!({}), None, json!({"a": "b"})).await,
            created(json!({}), None, Value::Null).await,
            created(config(), None, json!({"a": "b"})).await,
            created(config(), Some("zone = x, env=test"), json!({"a": "b", "env": "test"})).await,
            created(config(), Some(""), json!({"env": "other"})).await,
            created(config(), None, json!({"env": "prod"})).await,
        ];
        expect![[r#"
            {"a":"b"}
            null
            {"a":"b","env":"dev"}
            {"a":"b","env":"test","zone":"x"}
            {"env":"other"}
            403 Forbidden pods "p" is forbidden: pod node label selector conflicts with its namespace node label selector"#]]
        .assert_eq(&seen.join("\n"));
    }

    #[tokio::test]
    async fn pods_select_by_what_is_listed_for_their_namespace() {
        let config = || json!({"n": "env=dev,a=b"});
        assert_eq!(created(config(), Some("env=dev"), Value::Null).await, r#"{"env":"dev"}"#);
        let refusal = r#"403 Forbidden pods "p" is forbidden: pod node label selector labels conflict with its namespace whitelist"#;
        for selector in [json!({"env": "prod"}), json!({"c": "d"})] {
            assert_eq!(created(config(), None, selector).await, refusal);
        }
        // What was changed after this plugin is seen, too.
        let plugin = PodNodeSelector(serde_json::from_value(config()).unwrap());
        let mut request = Request::of("", "v1", "Pod", "pods", Scope::Namespaced);
        request.object = Some(json!({"metadata": {"name": "p"}, "spec": {"nodeSelector": {"c": "d"}}}));
        let refused = request.with(async |a| plugin.validate(a).await).await.unwrap_err();
        assert_eq!(format!("{} Forbidden {refused}", refused.code), refusal);
    }

    #[tokio::test]
    async fn malformed_selectors_are_errors_of_the_server() {
        let mut seen = vec![];
        for selector in ["a", "a=b=c", "-=b", "a=-"] {
            seen.push(created(json!({}), Some(selector), Value::Null).await);
        }
        expect![[r#"
            500 Unknown invalid selector: [a]
            500 Unknown invalid selector: [a b c]
            500 Unknown <nil>: Invalid value: "-": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
            500 Unknown [a]: Invalid value: "-": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"#]].assert_eq(&seen.join("\n"));
    }

    #[test]
    fn reads_the_configuration() {
        let read = |value: Value| {
            let made = PodNodeSelector::configured(Some(Configuration::of(value)));
            made.map_or_else(|error| error, |plugin| format!("{:?}", plugin.0))
        };
        let seen = [
            read(json!({FIELD: {CLUSTER: "a=b", "n": "c=d"}})),
            read(json!({"PodNodeSelectorPluginConfig": null, "imagePolicy": {}})),
            read(json!({FIELD: {"n": 1}})),
        ];
        expect![[r#"
            {"clusterDefaultNodeSelector": "a=b", "n": "c=d"}
            {}
            podNodeSelectorPluginConfig: invalid type: integer `1`, expected a string"#]]
        .assert_eq(&seen.join("\n"));
        assert!(PodNodeSelector::configured(None).unwrap().0.is_empty());
    }
}
