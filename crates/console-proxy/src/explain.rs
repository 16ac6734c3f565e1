//! What `kaji why` says, as JSON, with the caller's credentials.

use crate::{AnswerBody, PATIENCE, Proxy, json_answer, refusal};
use futures_util::future::BoxFuture;
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use kaji_explain::{Api, ExplainError, Refusal, Report, Request, Subject, explain, explain_forbidden};
use kaji_meta::Query;
use kube::client::Body;
use serde_json::Value;

/// The longest answer that is read: a page of a list.
const LONGEST_ANSWER: usize = 256 << 20;
const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;q=0.1";

impl Proxy {
    /// Explains an object (`subject=KIND/NAME&namespace=N`) or a refusal (`refusal=TEXT`).
    pub(crate) async fn why(&self, query: Option<&str>) -> Response<AnswerBody> {
        let query = Query::parse(query.unwrap_or_default());
        let Ok(_permit) = self.explanations.try_acquire() else {
            return refusal(StatusCode::TOO_MANY_REQUESTS, "other explanations are being made");
        };
        match tokio::time::timeout(PATIENCE, self.explained(&query)).await {
            Ok(Ok(report)) => match serde_json::to_value(&report) {
                Ok(value) => json_answer(StatusCode::OK, &value),
                Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
            },
            Ok(Err(error)) => {
                let code = match &error {
                    ExplainError::Subject(_) => StatusCode::BAD_REQUEST,
                    ExplainError::NotFound(_) => StatusCode::NOT_FOUND,
                    ExplainError::Unreadable(_) => StatusCode::FORBIDDEN,
                };
                refusal(code, &error.to_string())
            }
            Err(_) => refusal(StatusCode::GATEWAY_TIMEOUT, "the explanation takes too long"),
        }
    }

    async fn explained(&self, query: &Query) -> Result<Report, ExplainError> {
        let server = Server { client: self.client.clone() };
        if let Some(text) = query.first("refusal") {
            let request = Request::parse(text)
                .ok_or_else(|| ExplainError::Subject("this is no refusal of the API server".to_owned()))?;
            return Ok(explain_forbidden(&server, &request).await);
        }
        let subject = [query.first("subject").unwrap_or_default().to_owned()];
        let subject = Subject::parse(&subject)?;
        let namespace = query.first("namespace").unwrap_or(&self.namespace);
        explain(&server, &subject, namespace, jiff::Timestamp::now()).await
    }
}

/// The API server of the connection.
struct Server {
    client: kube::Client,
}

impl Server {
    async fn bytes(&self, path: &str, limit: usize) -> Result<Vec<u8>, Refusal> {
        let failed = |error: &dyn std::fmt::Display| Refusal::Failed(format!("{path}: {error}"));
        let accept =
            if matches!(path, "/api" | "/apis") { AGGREGATED } else { "application/json, */*;q=0.1" };
        let request = http::Request::get(path).header(header::ACCEPT, accept);
        let request = request.body(Body::empty()).map_err(|error| failed(&error))?;
        let response = self.client.send(request).await.map_err(|error| failed(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), limit);
        let body = body.collect().await.map_err(|error| failed(&error))?.to_bytes();
        if status.is_success() {
            return Ok(body.to_vec());
        }
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        let message = answer["message"].as_str().map_or_else(|| format!("{path}: {status}"), str::to_owned);
        Err(match status.as_u16() {
            401 | 403 => Refusal::Forbidden(message),
            404 => Refusal::NotFound(message),
            _ => Refusal::Failed(message),
        })
    }
}

impl Api for Server {
    fn get<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Value, Refusal>> {
        Box::pin(async move {
            let bytes = self.bytes(path, LONGEST_ANSWER).await?;
            serde_json::from_slice(&bytes).map_err(|error| Refusal::Failed(format!("{path}: {error}")))
        })
    }

    fn text<'a>(&'a self, path: &'a str, limit: usize) -> BoxFuture<'a, Result<String, Refusal>> {
        Box::pin(async move { Ok(String::from_utf8_lossy(&self.bytes(path, limit).await?).into_owned()) })
    }
}
