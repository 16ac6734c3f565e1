//! The API as the test sees it: discovery, objects of any kind, and waits, with an administrator's client past the fault layer.
//!
//! Invariant: every wait has a deadline.

use crate::scenario::Wait;
use http::{Request, header};
use kaji_schema::jsonpath::JsonPath;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(50);
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// The field manager of what steps apply.
const MANAGER: &str = "kaji-test";

/// Why a request, or a wait, came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The server refused, or did not answer.
    #[error("{what}: {source}")]
    Request {
        /// The request.
        what: String,
        /// Why.
        source: Box<kube::Error>,
    },
    /// A request that cannot be made.
    #[error("{0}: malformed")]
    Malformed(String),
    /// No such resource.
    #[error("the server has no resource {0:?}")]
    NoResource(String),
    /// An object without kind or name.
    #[error("an object of a manifest has no apiVersion, kind or name")]
    Incomplete,
    /// It did not come about in time.
    #[error("not within {} s: {what}", within.as_secs())]
    Late {
        /// What.
        what: String,
        /// How long it was waited for.
        within: Duration,
    },
    /// A path of a wait.
    #[error("{0}")]
    Path(String),
}

/// A resource of discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceType {
    /// Empty for core.
    pub group: String,
    /// Its version.
    pub version: String,
    /// In lower case.
    pub plural: String,
    /// Its kind.
    pub kind: String,
    /// Whether objects are in namespaces.
    pub namespaced: bool,
    /// Whether it can be listed, and is stored.
    pub listed: bool,
}

impl ResourceType {
    /// `deployments.apps`
    #[must_use]
    pub fn full_name(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// The path of a collection, or of an object.
    #[must_use]
    pub fn path(&self, namespace: &str, name: &str) -> String {
        let mut path = match self.group.as_str() {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        };
        if self.namespaced && !namespace.is_empty() {
            path.push_str(&format!("/namespaces/{namespace}"));
        }
        path.push_str(&format!("/{}", self.plural));
        if !name.is_empty() {
            path.push_str(&format!("/{name}"));
        }
        path
    }

    fn is_called(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        name == self.plural || name == self.full_name() || name == self.kind.to_ascii_lowercase()
    }
}

/// See the module.
#[derive(Clone)]
pub struct Api {
    client: kube::Client,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Api")
    }
}

impl Api {
    /// By this client.
    #[must_use]
    pub fn new(client: kube::Client) -> Api {
        Api { client }
    }

    async fn send(&self, request: http::request::Builder, body: Vec<u8>) -> Result<Value, ApiError> {
        let what = match (request.method_ref(), request.uri_ref()) {
            (Some(method), Some(uri)) => format!("{method} {uri}"),
            _ => "a request".to_owned(),
        };
        let request = request.body(body).map_err(|_| ApiError::Malformed(what.clone()))?;
        let answer = self.client.request::<Value>(request).await;
        answer.map_err(|source| ApiError::Request { what, source: Box::new(source) })
    }

    /// Reads a path.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn get(&self, path: &str) -> Result<Value, ApiError> {
        self.send(Request::get(path), Vec::new()).await
    }

    /// Posts an object.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn post(&self, path: &str, object: &Value) -> Result<Value, ApiError> {
        let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
        self.send(request, object.to_string().into_bytes()).await
    }

    /// Every resource, in its preferred version.
    ///
    /// # Errors
    /// When discovery fails.
    pub async fn resources(&self) -> Result<Vec<ResourceType>, ApiError> {
        let mut all = Vec::new();
        for path in ["/api", "/apis"] {
            let request = Request::get(path).header(header::ACCEPT, AGGREGATED);
            let found = self.send(request, Vec::new()).await?;
            for group in items(&found, "items") {
                let name = text(group, "/metadata/name");
                // The preferred version is the first one. A resource may be in another alone.
                for version in items(group, "versions") {
                    let resources = items(version, "resources").iter();
                    for found in resources.map(|r| resource_type(&name, &text(version, "/version"), r)) {
                        let known = |r: &ResourceType| r.group == found.group && r.plural == found.plural;
                        if !all.iter().any(known) {
                            all.push(found);
                        }
                    }
                }
            }
        }
        Ok(all)
    }

    async fn resource(
        &self,
        accepts: impl Fn(&ResourceType) -> bool,
        name: &str,
    ) -> Result<ResourceType, ApiError> {
        let found = self.resources().await?.into_iter().find(accepts);
        found.ok_or_else(|| ApiError::NoResource(name.to_owned()))
    }

    async fn of_object(&self, object: &Value) -> Result<(ResourceType, String, String), ApiError> {
        let (version, kind) = (text(object, "/apiVersion"), text(object, "/kind"));
        let group = version.split_once('/').map_or("", |(group, _)| group).to_owned();
        let (namespace, name) = (text(object, "/metadata/namespace"), text(object, "/metadata/name"));
        if kind.is_empty() || version.is_empty() {
            return Err(ApiError::Incomplete);
        }
        let mut found = self.resource(|r| r.group == group && r.kind == kind, &kind).await?;
        // The object's own version, which may be another than the preferred one.
        found.version = version.rsplit('/').next().unwrap_or_default().to_owned();
        let namespace = if namespace.is_empty() { "default".to_owned() } else { namespace };
        Ok((found, namespace, name))
    }

    /// Applies an object, server-side; creates one that has no name. Returns its path. A resource that is only just being defined is
    /// waited for.
    ///
    /// # Errors
    /// When it is refused, or its resource is not there in time.
    pub async fn apply(&self, object: &Value, within: Duration) -> Result<String, ApiError> {
        let deadline = Instant::now() + within;
        loop {
            match self.apply_once(object).await {
                Err(ApiError::NoResource(_)) if Instant::now() < deadline => sleep(LOOK).await,
                Err(ApiError::Request { source, .. })
                    if is_not_found(&source) && Instant::now() < deadline =>
                {
                    sleep(LOOK).await;
                }
                other => return other,
            }
        }
    }

    async fn apply_once(&self, object: &Value) -> Result<String, ApiError> {
        let (resource, namespace, name) = self.of_object(object).await?;
        if name.is_empty() {
            let created = self.post(&resource.path(&namespace, ""), object).await?;
            return Ok(resource.path(&namespace, &text(&created, "/metadata/name")));
        }
        let path = resource.path(&namespace, &name);
        let request = Request::patch(format!("{path}?fieldManager={MANAGER}&force=true"))
            .header(header::CONTENT_TYPE, "application/apply-patch+yaml");
        self.send(request, object.to_string().into_bytes()).await?;
        Ok(path)
    }

    /// The path of an object of a manifest.
    ///
    /// # Errors
    /// When its resource is not known, or it has no name.
    pub async fn path_of(&self, object: &Value) -> Result<String, ApiError> {
        let (resource, namespace, name) = self.of_object(object).await?;
        if name.is_empty() { Err(ApiError::Incomplete) } else { Ok(resource.path(&namespace, &name)) }
    }

    /// The path of an object by the name of its resource.
    ///
    /// # Errors
    /// When there is no such resource.
    pub async fn path(
        &self,
        resource: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<String, ApiError> {
        let found = self.resource(|r| r.is_called(resource), resource).await?;
        Ok(found.path(namespace.unwrap_or("default"), name))
    }

    /// Changes an object by a JSON merge patch.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn patch(&self, path: &str, patch: &Value) -> Result<(), ApiError> {
        let request = Request::patch(path).header(header::CONTENT_TYPE, "application/merge-patch+json");
        self.send(request, patch.to_string().into_bytes()).await?;
        Ok(())
    }

    /// Deletes an object, and what it owns after it. One that is gone is no error.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn delete(&self, path: &str) -> Result<(), ApiError> {
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
        let request = Request::delete(path).header(header::CONTENT_TYPE, "application/json");
        match self.send(request, options.to_string().into_bytes()).await {
            Err(ApiError::Request { source, .. }) if is_not_found(&source) => Ok(()),
            other => other.map(drop),
        }
    }

    /// An object, if it is there.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn find(&self, path: &str) -> Result<Option<Value>, ApiError> {
        match self.get(path).await {
            Err(ApiError::Request { source, .. }) if is_not_found(&source) => Ok(None),
            other => other.map(Some),
        }
    }

    /// The revision of the store.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn revision(&self) -> Result<u64, ApiError> {
        let list = self.get("/api/v1/namespaces?limit=1").await?;
        text(&list, "/metadata/resourceVersion")
            .parse()
            .map_err(|_| ApiError::Malformed("resourceVersion".into()))
    }

    /// Waits until an object is gone.
    ///
    /// # Errors
    /// When it is not in time.
    pub async fn wait_gone(&self, path: &str, within: Duration) -> Result<(), ApiError> {
        self.until(&format!("{path} is gone"), within, async || Ok(self.find(path).await?.is_none())).await
    }

    /// Waits as a step says.
    ///
    /// # Errors
    /// When it does not come about in time.
    pub async fn wait(&self, wait: &Wait, within: Duration) -> Result<(), ApiError> {
        let path = wait.jsonpath.as_deref().map(JsonPath::compile).transpose();
        let path = path.map_err(|error| ApiError::Path(error.to_string()))?;
        let at = self.path(&wait.resource, wait.namespace.as_deref(), &wait.name).await?;
        self.until(&describe(wait), within, async || {
            let found = self.find(&at).await?;
            Ok(match found {
                None => wait.gone,
                Some(object) => !wait.gone && holds(wait, path.as_ref(), &object),
            })
        })
        .await
    }

    /// Waits for a condition.
    ///
    /// # Errors
    /// When it does not come about in time.
    pub async fn until(
        &self,
        what: &str,
        within: Duration,
        mut holds: impl AsyncFnMut() -> Result<bool, ApiError>,
    ) -> Result<(), ApiError> {
        let deadline = Instant::now() + within;
        while !holds().await? {
            if Instant::now() > deadline {
                return Err(ApiError::Late { what: what.to_owned(), within });
            }
            sleep(LOOK).await;
        }
        Ok(())
    }
}

fn describe(wait: &Wait) -> String {
    let Wait { resource, name, .. } = wait;
    let what = match (&wait.condition, &wait.jsonpath, &wait.value) {
        _ if wait.gone => "is gone".to_owned(),
        (Some(condition), _, _) => format!("has the condition {condition}"),
        (_, Some(path), Some(value)) => format!("has {value} at {path}"),
        (_, Some(path), None) => format!("has {path}"),
        _ => "is there".to_owned(),
    };
    format!("{resource}/{name} {what}")
}

fn holds(wait: &Wait, path: Option<&JsonPath>, object: &Value) -> bool {
    let condition = wait.condition.as_ref().is_none_or(|wanted| {
        let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
        conditions.into_iter().flatten().any(|c| c["type"] == wanted.as_str() && c["status"] == "True")
    });
    let leads = path.is_none_or(|path| match (path.first(object), &wait.value) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(found), Some(value)) => *value == as_text(found),
    });
    condition && leads
}

/// A value as a file says it.
fn as_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn resource_type(group: &str, version: &str, resource: &Value) -> ResourceType {
    let verbs = items(resource, "verbs");
    ResourceType {
        group: group.to_owned(),
        version: version.to_owned(),
        plural: text(resource, "/resource"),
        kind: text(resource, "/responseKind/kind"),
        namespaced: resource["scope"] == "Namespaced",
        listed: verbs.iter().any(|v| v == "list") && verbs.iter().any(|v| v == "watch"),
    }
}

fn items<'v>(value: &'v Value, field: &str) -> &'v [Value] {
    value[field].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Text at a pointer; empty if there is none.
pub fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}
