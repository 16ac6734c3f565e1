//! The way of a request from a component to the API server: its turn, its credentials, and an update in place of a patch that the
//! client's role does not allow.
//!
//! Invariant: the name in `User-Agent` decides about limit and account; it is the component's own, from inside the process.

use crate::{
    accounts::Accounts,
    limits::Limits,
    rest_client::RestClientMetrics,
    updates::{Patch, Updates},
};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use kube::client::Body;
use std::{sync::Arc, time::Instant};

/// Sends requests.
pub(crate) struct Transport {
    /// With the component's credentials.
    own: kube::Client,
    limits: Option<Limits>,
    /// Credentials of single clients, and connections without any.
    accounts: Option<(Accounts, kube::Client)>,
    updates: Updates,
    metrics: RestClientMetrics,
    host: String,
}

/// A request that can be sent more than once.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub method: Method,
    pub uri: Uri,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Message {
    fn agent(&self) -> String {
        let agent = self.headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
        agent.unwrap_or_default().to_owned()
    }

    fn request(&self) -> Request<Body> {
        let mut request = Request::new(Body::from(self.body.to_vec()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }
}

impl Transport {
    /// Over a client with the component's credentials.
    pub fn new(own: kube::Client, limits: Option<Limits>) -> Transport {
        let (updates, metrics) = (Updates::default(), RestClientMetrics::default());
        Transport { own, limits, accounts: None, updates, metrics, host: String::new() }
    }

    /// The same, counted there as requests to this host.
    pub fn measured(self, metrics: RestClientMetrics, host: String) -> Transport {
        Transport { metrics, host, ..self }
    }

    /// The same, with accounts of single clients, over connections that have no credentials.
    pub fn with_accounts(self, accounts: Accounts, bare: kube::Client) -> Transport {
        Transport { accounts: Some((accounts, bare)), ..self }
    }

    /// A client that sends its requests so.
    pub fn into_client(self) -> kube::Client {
        let transport = Arc::new(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let transport = transport.clone();
            async move { transport.send_request(request).await }
        });
        kube::Client::new(service, "default")
    }

    async fn send_request(&self, request: Request<Body>) -> Result<Response<Body>, kube::Error> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await?;
        let message = Message { method: parts.method, uri: parts.uri, headers: parts.headers, body };
        let Some(patch) = Patch::of(&message) else { return self.send(&message).await };
        if !self.updates.replaces(&patch) {
            let response = self.send(&message).await?;
            if response.status() != StatusCode::FORBIDDEN {
                return Ok(response);
            }
            // What no update could do either keeps the first answer.
            return Ok(self.updates.update(self, &patch).await?.unwrap_or(response));
        }
        match self.updates.update(self, &patch).await? {
            Some(response) => Ok(response),
            None => self.send(&message).await,
        }
    }

    /// Sends a message as it is.
    pub async fn send(&self, message: &Message) -> Result<Response<Body>, kube::Error> {
        let agent = message.agent();
        if let Some(limits) = &self.limits {
            limits.wait(&agent).await;
        }
        let Some((accounts, bare)) = &self.accounts else {
            return self.counted(&self.own, message.request()).await;
        };
        let failed = |error: kaji_runtime::Error| kube::Error::Service(error.into());
        let Some(authorization) = accounts.authorization(&agent).await.map_err(failed)? else {
            return self.counted(&self.own, message.request()).await;
        };
        let mut request = message.request();
        request.headers_mut().insert(header::AUTHORIZATION, authorization.clone());
        let response = self.counted(bare, request).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            accounts.refused(&agent, &authorization).await;
        }
        Ok(response)
    }

    async fn counted(
        &self,
        client: &kube::Client,
        request: Request<Body>,
    ) -> Result<Response<Body>, kube::Error> {
        let (method, since) = (request.method().clone(), Instant::now());
        let answer = client.send(request).await;
        let code = answer.as_ref().ok().map(Response::status);
        self.metrics.answered(&self.host, &method, code, since.elapsed());
        answer
    }
}
