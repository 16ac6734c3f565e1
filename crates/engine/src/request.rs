//! One API request as the engine sees it: parsed out of HTTP by the server, or built in process.
//!
//! Invariant: everything here is bounded by the server before it arrives (body size, header size, query size).

use crate::{audit::AuditContext, deadline::Deadline, webhook_time::WebhookTime};
use bytes::Bytes;
use kaji_meta::{GroupResource, Query, Status};
use kaji_resource::{BoxFuture, UserInfo, Verb};
use kaji_traces::Parent;
use std::{
    fmt,
    sync::{Arc, LazyLock},
};

/// What `Accept` asked for, after negotiation among what the engine can produce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// The object or list itself.
    #[default]
    Object,
    /// `as=Table;g=meta.k8s.io;v=v1`
    Table,
    /// `as=PartialObjectMetadata(List)`
    PartialMetadata,
}

/// The encoding of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// `application/json`
    #[default]
    Json,
    /// `application/yaml`
    Yaml,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
}

/// What one clause of `Accept` asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MediaTypeOptions {
    /// Transformation.
    pub form: Form,
    /// Encoding.
    pub encoding: Encoding,
    /// As in [`Accept`].
    pub meta_v1beta1: bool,
}

/// Negotiated answer format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accept {
    /// Transformation.
    pub form: Form,
    /// Encoding.
    pub encoding: Encoding,
    /// `v=v1beta1` for Table and PartialObjectMetadata(List) instead of `v=v1`.
    pub meta_v1beta1: bool,
    /// `?pretty=true` (or a browser/curl user agent, as upstream).
    pub pretty: bool,
    /// What the client takes when it prefers protobuf and the resource has no such form (custom resources); `None` when
    /// it takes nothing else.
    pub fallback: Option<MediaTypeOptions>,
    /// Each object of a list and each event of a watch is to be a piece of the body by itself, which shares the cache's
    /// memory. For clients inside the process; JSON objects and partial metadata only. The content type of the answer says
    /// whether it is so: [`SEPARATE_OBJECTS`](crate::SEPARATE_OBJECTS).
    pub separate: bool,
}

impl Accept {
    /// The form for a resource that has (or has not) a protobuf form; `None` when there is none that the
    /// client takes. Partial metadata always has one.
    pub(crate) fn settle(self, protobuf: bool) -> Option<Accept> {
        if self.encoding != Encoding::Protobuf || self.form != Form::Object || protobuf {
            return Some(self);
        }
        let MediaTypeOptions { form, encoding, meta_v1beta1 } = self.fallback?;
        Some(Accept { form, encoding, meta_v1beta1, ..self })
    }
}

/// Authorizes the creation by a user that may update or patch: called only when the object is not there, and an apply (or an
/// update of the few kinds for which that is so) would create it. Of a connection that GET opens: called where the right to
/// create is needed besides. Of a deletion: called where the object is to be deleted although it cannot be read, which takes a right of
/// its own. A POST does not come here: the right to create is what its request is authorized for.
pub trait FurtherAuthorizer: fmt::Debug + Send + Sync {
    /// Whether what the request names may be created, or deleted unread.
    ///
    /// # Errors
    /// The 403 that the client gets.
    fn authorize<'a>(&'a self, request: &'a ApiRequest) -> BoxFuture<'a, Result<(), Status>>;
}

/// Memory of the process that requests share.
pub trait MemoryReservation: fmt::Debug + Send + Sync {
    /// Reserves what a document of this footprint takes, until the request has ended.
    ///
    /// # Errors
    /// 429 when there is not as much now, 413 when there never is.
    fn grow(&self, footprint: usize) -> Result<(), Status>;
}

/// A request for a resource, its subresource or its collection.
#[derive(Clone, Debug)]
pub struct ApiRequest {
    /// The verb, already told apart (`get`/`list`/`watch` from GET, `delete`/`deletecollection` from DELETE).
    pub verb: Verb,
    /// `""` for core.
    pub group: String,
    /// `v1`
    pub version: String,
    /// Plural.
    pub resource: String,
    /// `""` for cluster scope or all namespaces.
    pub namespace: String,
    /// `""` for collections.
    pub name: String,
    /// `""` for the main resource. Further path segments (`proxy/a/b`) come in `subpath`.
    pub subresource: String,
    /// What follows the subresource in the path.
    pub subpath: String,
    /// The query parameters.
    pub query: Query,
    /// Answer format.
    pub accept: Accept,
    /// `Content-Type` as sent (`""` when absent).
    pub content_type: String,
    /// The whole body.
    pub body: Bytes,
    /// Memory that it has reserved; nothing for the server's own requests.
    pub memory: Option<Arc<dyn MemoryReservation>>,
    /// The user of the request.
    pub user: UserInfo,
    /// For the default field manager name.
    pub user_agent: String,
    /// The id that audit logs have of the request; empty for requests of the server itself and for reads.
    pub audit_id: String,
    /// The audit event of the request, if it is recorded.
    pub audit: Option<Arc<dyn AuditContext>>,
    /// Authorizes an update that creates, and a deletion of what cannot be read; `None` for requests of the server itself.
    pub further_authorizer: Option<Arc<dyn FurtherAuthorizer>>,
    /// Until when: a write that is not committed by then is not made.
    pub deadline: Deadline,
    /// Counts the time of webhooks.
    pub webhooks: Arc<WebhookTime>,
    /// The span that it is carried out in, if it is traced.
    pub trace: Option<Parent>,
}

/// The user of requests by the server itself.
static SERVER: LazyLock<UserInfo> = LazyLock::new(|| UserInfo {
    name: "system:apiserver".into(),
    groups: vec!["system:masters".into(), "system:authenticated".into()],
    ..UserInfo::default()
});

impl ApiRequest {
    /// A request of the server itself, which is not recorded, for all objects of a resource; a caller that needs less, or
    /// something else, says so.
    pub fn own(verb: Verb, resource: GroupResource, version: &str, user_agent: &str) -> ApiRequest {
        ApiRequest {
            verb,
            group: resource.group,
            version: version.into(),
            resource: resource.resource,
            namespace: String::new(),
            name: String::new(),
            subresource: String::new(),
            subpath: String::new(),
            query: Query::default(),
            accept: Accept::default(),
            content_type: String::new(),
            body: Bytes::new(),
            memory: None,
            user: ApiRequest::server().clone(),
            user_agent: user_agent.into(),
            audit_id: String::new(),
            audit: None,
            further_authorizer: None,
            deadline: Default::default(),
            webhooks: Arc::default(),
            trace: None,
        }
    }

    /// The server itself as a user.
    pub(crate) fn server() -> &'static UserInfo {
        &SERVER
    }
}
