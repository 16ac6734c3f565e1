//! An APIService, as far as the aggregation layer looks at it.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kaji_meta::{GroupResource, conditions, object};
use serde_json::{Value, json};

/// Where APIServices live.
pub fn api_services() -> GroupResource {
    GroupResource::new("apiregistration.k8s.io", "apiservices")
}

/// An APIService that names a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiService {
    /// `v1.example.com`
    pub name: String,
    /// `example.com`; `""` for the core group.
    pub group: String,
    /// `v1`
    pub version: String,
    /// Of the group, among all.
    pub group_priority: i64,
    /// Of the version, in its group.
    pub version_priority: i64,
    /// Its service.
    pub backend: Backend,
    /// What is known of it.
    pub available: Option<Condition>,
}

/// The service of an APIService, and how its certificate is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Of the service.
    pub namespace: String,
    /// Of the service.
    pub name: String,
    /// Of the service, not of what is behind it.
    pub port: u16,
    /// PEM; empty for the machine's authorities.
    pub ca_bundle: Vec<u8>,
    /// The certificate is not looked at.
    pub insecure: bool,
}

/// The `Available` condition without its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// A word.
    pub reason: String,
    /// For people.
    pub message: String,
}

impl Condition {
    /// Everything is as it should be.
    pub fn passed() -> Condition {
        Condition { status: "True".into(), reason: "Passed".into(), message: "all checks passed".into() }
    }

    /// Of those that this server serves itself.
    pub fn local() -> Condition {
        let message = "Local APIServices are always available".into();
        Condition { status: "True".into(), reason: "Local".into(), message }
    }

    /// Something is not.
    pub fn unavailable(reason: &str, message: impl Into<String>) -> Condition {
        Condition { status: "False".into(), reason: reason.into(), message: message.into() }
    }

    /// That of an object.
    pub fn of(object: &Value) -> Option<Condition> {
        let all = object::arr_at(object, &["status", "conditions"]);
        let found = all.iter().find(|c| c["type"] == "Available")?;
        let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
        Some(Condition { status: text("status"), reason: text("reason"), message: text("message") })
    }

    /// Whether it says so.
    pub fn is_true(&self) -> bool {
        self.status == "True"
    }

    /// Puts it into an object. The time is that of the last change of the status.
    pub fn put(&self, object: &mut Value, now: &str) {
        let Condition { status, reason, message } = self;
        let condition = json!({"type": "Available", "status": status, "reason": reason, "message": message});
        conditions::set(object::field_mut(object, "status"), condition, now);
    }
}

impl ApiService {
    /// What an object says; `None` for one without a service.
    pub fn parse(object: &Value) -> Option<ApiService> {
        let spec = &object["spec"];
        let service = spec.get("service").filter(|s| s.is_object())?;
        let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
        let port = service["port"].as_u64().and_then(|p| u16::try_from(p).ok()).unwrap_or(443);
        let bundle = STANDARD.decode(text(spec, "caBundle")).unwrap_or_default();
        Some(ApiService {
            name: object::name(object).to_owned(),
            group: text(spec, "group"),
            version: text(spec, "version"),
            group_priority: spec["groupPriorityMinimum"].as_i64().unwrap_or(0),
            version_priority: spec["versionPriority"].as_i64().unwrap_or(0),
            backend: Backend {
                namespace: text(service, "namespace"),
                name: text(service, "name"),
                port,
                ca_bundle: bundle,
                insecure: spec["insecureSkipTLSVerify"].as_bool().unwrap_or(false),
            },
            available: Condition::of(object),
        })
    }

    /// Whether requests are forwarded to it.
    pub fn is_available(&self) -> bool {
        self.available.as_ref().is_some_and(Condition::is_true)
    }

    /// Whether nothing but what is known of it differs.
    pub(crate) fn same_but_for_condition(&self, other: &ApiService) -> bool {
        ApiService { available: None, ..self.clone() } == ApiService { available: None, ..other.clone() }
    }

    /// `/apis/example.com/v1`; what every such server serves, and below which everything is its own.
    pub fn path(&self) -> String {
        let ApiService { group, version, .. } = self;
        if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> Value {
        json!({
            "metadata": {"name": "v1.example.com"},
            "spec": {"group": "example.com", "version": "v1", "groupPriorityMinimum": 2000, "versionPriority": 15,
                "caBundle": "eA==", "service": {"namespace": "n", "name": "s", "port": 8443}},
        })
    }

    #[test]
    fn conditions_keep_their_time_until_the_status_changes() {
        let mut object = object();
        assert_eq!(ApiService::parse(&object).unwrap().available, None);
        Condition::unavailable("ServiceNotFound", "gone").put(&mut object, "1");
        Condition::unavailable("MissingEndpoints", "none").put(&mut object, "2");
        assert!(!ApiService::parse(&object).unwrap().is_available());
        let before = object["status"]["conditions"][0].to_string();
        Condition::passed().put(&mut object, "3");
        expect_test::expect![[r#"
            {"lastTransitionTime":"1","message":"none","reason":"MissingEndpoints","status":"False","type":"Available"}
            {"lastTransitionTime":"3","message":"all checks passed","reason":"Passed","status":"True","type":"Available"}"#]]
        .assert_eq(&format!("{before}\n{}", object["status"]["conditions"][0]));
        assert!(ApiService::parse(&object).unwrap().is_available());
    }

    #[test]
    fn only_those_with_a_service_count() {
        let found = ApiService::parse(&object()).unwrap();
        assert_eq!((found.path().as_str(), found.backend.port), ("/apis/example.com/v1", 8443));
        assert_eq!(found.backend.ca_bundle, b"x");
        let mut local = object();
        local["spec"]["service"] = Value::Null;
        assert_eq!(ApiService::parse(&local), None);
    }
}
