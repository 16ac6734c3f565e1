//! Requests to a cluster's engine.

use super::TestCluster;
use futures_util::StreamExt;
use kaji_engine::{ApiRequest, ApiResponse, Body};
use kaji_resource::{UserInfo, Verb};
use serde_json::Value;

/// The engine of a cluster, asked as a client asks it but for the transport.
pub struct Api<'a>(pub &'a TestCluster);

impl Api<'_> {
    /// One request. The path is `group/version/resource[/name[/subresource]][?query]`, the group empty for core; a
    /// namespace comes as `namespace=` in the query. A body that is a string is sent as its text.
    pub async fn raw(&self, verb: Verb, path: &str, content_type: &str, body: &Value) -> ApiResponse {
        let groups = vec!["system:masters".into()];
        let user = UserInfo { name: "tester".into(), groups, ..UserInfo::default() };
        self.raw_as(user, verb, path, content_type, body).await
    }

    /// One request of another user.
    pub async fn raw_as(
        &self,
        user: UserInfo,
        verb: Verb,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> ApiResponse {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let parts: Vec<&str> = path.split('/').collect();
        let [group, version, resource, name, subresource] =
            [0, 1, 2, 3, 4].map(|i| parts.get(i).copied().unwrap_or_default());
        let query: Vec<(&str, &str)> = query.split('&').filter_map(|p| p.split_once('=')).collect();
        let namespace = query.iter().find(|(k, _)| *k == "namespace").map_or("", |(_, v)| v).to_owned();
        let request = ApiRequest {
            verb,
            group: group.into(),
            version: version.into(),
            resource: resource.into(),
            namespace,
            name: name.into(),
            subresource: subresource.into(),
            subpath: String::new(),
            query: query.into_iter().filter(|(k, _)| *k != "namespace").collect(),
            accept: Default::default(),
            content_type: content_type.into(),
            body: match body {
                Value::Null => Default::default(),
                Value::String(text) => text.clone().into(),
                _ => body.to_string().into(),
            },
            user,
            user_agent: "tester".into(),
            audit_id: String::new(),
            audit: None,
            memory: None,
            further_authorizer: None,
            deadline: Default::default(),
            webhooks: Default::default(),
            trace: None,
        };
        self.0.cluster.stack.engine.handle(request).await
    }

    /// A request in the usual form: patches are JSON patches.
    async fn usual(&self, verb: Verb, path: &str, body: &Value) -> ApiResponse {
        let kind = if verb == Verb::Patch { "application/json-patch+json" } else { "application/json" };
        self.raw(verb, path, kind, body).await
    }

    /// A request that must succeed.
    pub async fn ok(&self, verb: Verb, path: &str, body: Value) -> Value {
        let response = self.usual(verb, path, &body).await;
        let code = response.code;
        let text: Value = serde_json::from_slice(&response.body.into_bytes().unwrap()).unwrap();
        assert!(code < 300, "{verb:?} {path}: {text}");
        text
    }

    /// A request that is refused: code and message.
    pub async fn refused(&self, verb: Verb, path: &str, body: Value) -> (u16, String) {
        let response = self.usual(verb, path, &body).await;
        let code = response.code;
        let text: Value = serde_json::from_slice(&response.body.into_bytes().unwrap()).unwrap();
        (code, text["message"].as_str().unwrap_or_default().to_owned())
    }

    /// Another user's request with a JSON body: code, and message if it is refused.
    pub async fn answer_to(&self, user: &UserInfo, verb: Verb, path: &str, body: Value) -> (u16, String) {
        let response = self.raw_as(user.clone(), verb, path, "application/json", &body).await;
        let code = response.code;
        let text: Value = serde_json::from_slice(&response.body.into_bytes().unwrap()).unwrap();
        (code, if code < 300 { String::new() } else { text["message"].as_str().unwrap().to_owned() })
    }

    /// Follows an object of the cluster until it is as wanted; `None` when it is gone.
    pub async fn until(&self, resource: &str, name: &str, mut done: impl FnMut(Option<&Value>) -> bool) {
        let one = format!("{resource}?fieldSelector=metadata.name={name}");
        let list = self.ok(Verb::List, &one, Value::Null).await;
        if done(list["items"].get(0)) {
            return;
        }
        let version = list["metadata"]["resourceVersion"].as_str().unwrap();
        let path = format!("{one}&watch=true&resourceVersion={version}");
        let Body::Watch(mut events) = self.raw(Verb::Watch, &path, "", &Value::Null).await.body else {
            panic!("no watch")
        };
        while let Some(piece) = events.next().await {
            for event in serde_json::Deserializer::from_slice(&piece).into_iter::<Value>() {
                let event = event.unwrap();
                if done((event["type"] != "DELETED").then_some(&event["object"])) {
                    return;
                }
            }
        }
        panic!("the watch ended");
    }
}
