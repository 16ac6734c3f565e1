//! The API client: `kube`'s transport (in process or HTTPS), JSON requests and responses, `Status` errors.
//!
//! Invariant: a call other than a watch ends within [`CALL_TIMEOUT`], a list of objects with its last object.

use crate::{
    batch::BatchTransport,
    feed::{ClientFeed, Collection, Listed, ObjectEvents, ObjectFeed},
    interception::{Call, InterceptedFeed, Interception},
    meta::Meta,
};
use bytes::Bytes;
use futures_util::TryStreamExt;
use http::{Method, Request, Response, header};
use http_body_util::BodyExt;
use kaji_decisions::About;
use kaji_meta::Status;
pub use kaji_meta::query::escape;
use kube::client::Body;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{sync::Arc, time::Duration};

/// The failure of a call.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The server's error.
    #[error("{0}")]
    Api(Box<Status>),
    /// A failure of the transport.
    #[error("transport: {0}")]
    Transport(String),
    /// A response that does not decode.
    #[error("decode: {0}")]
    Decode(String),
    /// No response in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
}

impl Error {
    /// The HTTP code of an API error.
    pub fn code(&self) -> Option<u16> {
        match self {
            Error::Api(s) => Some(s.code),
            _ => None,
        }
    }

    /// 404
    pub fn not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// 409: a conflict, or an object that exists already.
    pub fn conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// The failure that a response with an error code and this body stands for.
    pub fn of_response(code: u16, body: &[u8]) -> Error {
        let status = serde_json::from_slice::<Value>(body).ok().and_then(|v| Status::from_value(&v));
        let text = || format!("HTTP {code}: {}", String::from_utf8_lossy(&body[..body.len().min(200)]));
        status.map_or_else(|| Error::Transport(text()), |s| Error::Api(Box::new(s)))
    }

    /// The failure that the Status of a watch's ERROR event stands for.
    pub fn of_watch(object: &[u8]) -> Error {
        let status = serde_json::from_slice::<Value>(object).ok().and_then(|v| Status::from_value(&v));
        status.map_or_else(
            || Error::Decode("a watch error without a Status".into()),
            |s| Error::Api(Box::new(s)),
        )
    }

    /// The API's reason, such as `AlreadyExists`.
    pub fn reason(&self) -> &str {
        match self {
            Error::Api(s) => s.reason.as_str(),
            _ => "",
        }
    }
}

/// The resource or object that a call is for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Target {
    /// `""` for core.
    pub group: String,
    /// `v1`
    pub version: String,
    /// Plural.
    pub resource: String,
    /// Namespace or `""`.
    pub namespace: String,
    /// Name, `""` for the collection.
    pub name: String,
    /// `""` for the main resource.
    pub subresource: String,
}

impl Target {
    /// The collection of a projected resource.
    pub fn of<T: crate::Projection>(namespace: &str, name: &str) -> Self {
        Target::named([T::GROUP, T::VERSION, T::RESOURCE], namespace, name)
    }

    /// Whether both are the same object or collection, subresources aside.
    pub fn same_object(&self, other: &Target) -> bool {
        let Target { group, resource, namespace, name, .. } = self;
        *name == other.name
            && *namespace == other.namespace
            && *resource == other.resource
            && *group == other.group
    }

    fn named(group_version_resource: [&str; 3], namespace: &str, name: &str) -> Self {
        let [group, version, resource] = group_version_resource.map(str::to_owned);
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Target { group, version, resource, namespace, name, subresource: String::new() }
    }

    /// The object that a decision is about.
    pub fn about(&self) -> About {
        let Target { group, resource, namespace, name, .. } = self;
        let [group, resource, namespace, name] = [group, resource, namespace, name].map(String::clone);
        About { group, resource, namespace, name }
    }

    /// The same object's subresource.
    pub fn subresource(mut self, subresource: &str) -> Self {
        self.subresource = subresource.into();
        self
    }

    /// The path.
    pub fn path(&self) -> String {
        let mut path = match self.group.as_str() {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        };
        if !self.namespace.is_empty() {
            path += &format!("/namespaces/{}", escape(&self.namespace));
        }
        path += "/";
        path += &self.resource;
        for part in [&self.name, &self.subresource] {
            if !part.is_empty() {
                path += "/";
                path += &escape(part);
            }
        }
        path
    }
}

/// The time limit of a call other than a watch.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// A client with a name (`User-Agent`, and so its field manager).
#[derive(Clone)]
pub struct Client {
    kube: kube::Client,
    agent: String,
    accept: &'static str,
    /// What lists and watches of whole collections are read from, if that is not the transport.
    feed: Option<Arc<dyn ObjectFeed>>,
    /// What carries creations that are sent together, if each is not a request of the transport.
    batches: Option<Arc<dyn BatchTransport>>,
    interception: Option<Arc<dyn Interception>>,
}

/// Objects of a list that are handled before other tasks have a turn.
const LIST_BATCH: usize = 128;

/// Objects are returned with their metadata alone.
/// Source: Kubernetes API concepts, "Metadata-only fetches".
pub(crate) const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// The same for lists.
pub(crate) const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

impl Client {
    /// Wraps a `kube` client.
    pub fn new(kube: kube::Client, agent: &str) -> Self {
        Client { kube, agent: agent.to_owned(), accept: JSON, feed: None, batches: None, interception: None }
    }

    /// The same transport under another name.
    pub fn named(&self, agent: &str) -> Self {
        Client { agent: agent.to_owned(), ..self.clone() }
    }

    /// The same client, which reads collections from `feed`.
    pub fn with_feed(self, feed: Arc<dyn ObjectFeed>) -> Self {
        Client { feed: Some(feed), ..self }
    }

    /// The same client, of which `batches` carries creations that are sent together.
    pub fn with_batches(self, batches: Arc<dyn BatchTransport>) -> Self {
        Client { batches: Some(batches), ..self }
    }

    pub(crate) fn batches(&self) -> Option<&dyn BatchTransport> {
        self.batches.as_deref()
    }

    pub(crate) fn agent(&self) -> &str {
        &self.agent
    }

    /// The same client, with calls that `interception` decides about: one by one.
    pub fn intercepted(self, interception: Arc<dyn Interception>) -> Self {
        let behind = |feed| Arc::new(InterceptedFeed::new(feed, interception.clone())) as Arc<dyn ObjectFeed>;
        Client { feed: self.feed.map(behind), batches: None, interception: Some(interception), ..self }
    }

    /// What decides about its calls, in a simulation.
    #[must_use]
    pub fn interception(&self) -> Option<&Arc<dyn Interception>> {
        self.interception.as_ref()
    }

    pub(crate) fn accepting(&self, accept: &'static str) -> Self {
        Client { accept, ..self.clone() }
    }

    /// Calls `each` with every object of a collection, in JSON; returns the list's revision.
    ///
    /// # Errors
    /// The server's error, a failure of the transport, [`Error::Timeout`], or what `each` says.
    pub async fn list_objects(
        &self,
        collection: &Collection,
        each: impl FnMut(&[u8]) -> Result<(), Error> + Send,
    ) -> Result<String, Error> {
        let whole = self.list_all(collection, each);
        tokio::time::timeout(CALL_TIMEOUT, whole).await.map_err(|_| Error::Timeout(CALL_TIMEOUT))?
    }

    async fn list_all(
        &self,
        collection: &Collection,
        mut each: impl FnMut(&[u8]) -> Result<(), Error> + Send,
    ) -> Result<String, Error> {
        let (mut revision, mut count) = (None, 0_usize);
        let mut list = match &self.feed {
            Some(feed) => feed.list(&self.agent, collection).await?,
            None => ClientFeed::new(self.clone()).list(&self.agent, collection).await?,
        };
        while let Some(part) = list.try_next().await? {
            match part {
                Listed::Object(object) => each(&object)?,
                Listed::Metadata(metadata) => revision = Some(decode::<Meta>(&metadata)?.resource_version),
            }
            count += 1;
            // A list from this process never waits by itself.
            if count.is_multiple_of(LIST_BATCH) {
                tokio::task::yield_now().await;
            }
        }
        revision.ok_or_else(|| Error::Decode("a list without metadata".into()))
    }

    /// Watches a collection from a revision.
    ///
    /// # Errors
    /// The server's error (410 for a compacted revision), or a failure of the transport.
    pub async fn watch_objects(&self, collection: &Collection, from: &str) -> Result<ObjectEvents, Error> {
        match &self.feed {
            Some(feed) => feed.watch(&self.agent, collection, from).await,
            None => ClientFeed::new(self.clone()).watch(&self.agent, collection, from).await,
        }
    }

    /// The same client, for the metadata of objects and of watched objects.
    pub fn metadata_only(&self) -> Self {
        Client { accept: METADATA_ONLY, ..self.clone() }
    }

    /// The same client, for lists of metadata.
    pub fn metadata_list(&self) -> Self {
        Client { accept: METADATA_LIST, ..self.clone() }
    }

    /// The wrapped client.
    pub fn kube(&self) -> &kube::Client {
        &self.kube
    }

    /// Sends a request and returns the open response (watches).
    pub async fn open(
        &self,
        method: Method,
        uri: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<Response<Body>, Error> {
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(header::ACCEPT, self.accept)
            .header(header::CONTENT_TYPE, content_type)
            .header(header::USER_AGENT, &self.agent)
            .body(Body::from(body))
            .map_err(|e| Error::Transport(e.to_string()))?;
        let Some(interception) = &self.interception else { return self.send(request).await };
        let call = Call {
            agent: self.agent.clone(),
            method: request.method().clone(),
            uri: request.uri().to_string(),
        };
        interception.before(&call).await?;
        let response = self.send(request).await?;
        interception.after(&call).await?;
        Ok(response)
    }

    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, Error> {
        let response = self.kube.send(request).await.map_err(|e| Error::Transport(e.to_string()))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let code = response.status().as_u16();
        Err(Error::of_response(code, &collect(response).await?))
    }

    /// Sends a request and reads the whole response.
    pub async fn call(
        &self,
        method: Method,
        uri: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<Bytes, Error> {
        let whole = async { collect(self.open(method, uri, content_type, body).await?).await };
        tokio::time::timeout(CALL_TIMEOUT, whole).await.map_err(|_| Error::Timeout(CALL_TIMEOUT))?
    }

    /// GET, decoded.
    pub async fn get<T: DeserializeOwned>(&self, uri: &str) -> Result<T, Error> {
        decode(&self.call(Method::GET, uri, JSON, Bytes::new()).await?)
    }

    /// POST.
    pub async fn create(&self, target: &Target, body: &Value) -> Result<Value, Error> {
        decode(&self.call(Method::POST, &target.path(), JSON, json(body)).await?)
    }

    /// POST, without decoding the response.
    pub async fn post(&self, target: &Target, body: &Value) -> Result<(), Error> {
        self.call(Method::POST, &target.path(), JSON, json(body)).await.map(drop)
    }

    /// PUT.
    pub async fn update(&self, target: &Target, body: &Value) -> Result<Value, Error> {
        decode(&self.call(Method::PUT, &target.path(), JSON, json(body)).await?)
    }

    /// PATCH, without decoding the response.
    pub async fn patch_only(&self, target: &Target, content_type: &str, body: &Value) -> Result<(), Error> {
        self.call(Method::PATCH, &target.path(), content_type, json(body)).await.map(drop)
    }

    /// PATCH with a content type and query (`""` or `a=b&c=d`).
    pub async fn patch(
        &self,
        target: &Target,
        content_type: &str,
        query: &str,
        body: &Value,
    ) -> Result<Value, Error> {
        let mut uri = target.path();
        if !query.is_empty() {
            uri = format!("{uri}?{query}");
        }
        decode(&self.call(Method::PATCH, &uri, content_type, json(body)).await?)
    }

    /// DELETE with options.
    pub async fn delete(&self, target: &Target, options: &Value) -> Result<Value, Error> {
        decode(&self.call(Method::DELETE, &target.path(), JSON, json(options)).await?)
    }
}

const JSON: &str = "application/json";

pub(crate) fn json(value: &Value) -> Bytes {
    let mut out = vec![];
    if !value.is_null() {
        kaji_meta::json::write(&mut out, value);
    }
    Bytes::from(out)
}

/// By the reader that informers decode with: each type has its decoder once.
fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    kaji_meta::json::from_slice(bytes).map_err(|e| Error::Decode(e.to_string()))
}

async fn collect(response: Response<Body>) -> Result<Bytes, Error> {
    let body = response.into_body().collect().await.map_err(|e| Error::Transport(e.to_string()))?;
    Ok(body.to_bytes())
}
