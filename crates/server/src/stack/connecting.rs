//! Requests that connect the client to another server: `exec`, `attach`, `portforward`, `log` and `proxy`.
//!
//! Invariant: they are authorized and admitted as all others; where they lead is the engine's answer, not the client's choice.

use super::Stack;
use crate::{
    api,
    audit::{Record, RemoteAddress},
    authorize,
    body::ResponseBody,
    connect::ConnectContext,
    documents,
    listen::{ConnectionGuard, ConnectionHandle},
    route::{RequestInfo, Target},
    stack::state::RequestContext,
};
use bytes::Bytes;
use http::Response;
use http_body_util::BodyExt;
use kaji_engine::Body;
use kaji_meta::Status;
use kaji_resource::{Carries, SubresourceKind, UserInfo};
use std::sync::Arc;

impl Stack {
    /// What a target carries that connects the client to another server; `None` for all others.
    pub(super) fn connects(&self, target: &Target) -> Option<Carries> {
        let registry = self.engine.registry();
        let resource = registry.lookup(&target.group, &target.version, &target.resource)?;
        match resource.def.version(&target.version)?.subresource(&target.subresource)?.kind {
            SubresourceKind::Connect { carries, .. } => Some(carries),
            _ => None,
        }
    }

    /// Connects the client to what the engine says. It streams in both directions, and ends when either side does.
    pub(super) async fn connect<B>(
        &self,
        parts: &mut http::request::Parts,
        body: B,
        (info, target, carries): (&RequestInfo, &Target, Carries),
        user: UserInfo,
        record: Option<Arc<Record>>,
        context: &mut RequestContext,
    ) -> Result<Response<ResponseBody>, Status>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let request = api::connect_request(
            api::Parts {
                headers: &parts.headers,
                info,
                target,
                user,
                body: Bytes::new(),
                memory: None,
                audit_id: &context.audit.id,
                audit: record.clone().map(|r| r as _),
                further_authorizer: Some(authorize::authorizer_of_connections(&self.authorizer)),
                deadline: context.deadline,
                webhooks: context.webhooks.clone(),
                trace: context.parent(),
            },
            carries,
        )?;
        let lane = parts.extensions.get::<ConnectionHandle>().map(|c| c.target.clone());
        let (answer, _) = self.dispatch(request, None, record, lane.as_ref()).await;
        let Body::Connect(connection) = answer.body else {
            return Ok(documents::response(parts, info, answer, false));
        };
        context.warnings.extend(answer.warnings);
        let facts = ConnectContext {
            info,
            remote: parts.extensions.get::<RemoteAddress>().map(|r| r.0),
            connection: parts.extensions.get::<ConnectionGuard>().map(|guard| Arc::new(guard.clone()) as _),
        };
        let body = body.map_err(Into::into).boxed_unsync();
        self.connector.carry_out(*connection, &facts, parts, body).await
    }
}
