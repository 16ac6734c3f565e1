//! What `kaji why` says, as JSON, with the caller's credentials: at the path, and in the form, of an API server's explanations.

use crate::{AnswerBody, Proxy, RESPONSE_HEAD_TIMEOUT, json_answer, refusal};
use http::{Response, StatusCode};
use kaji_explain::{ApiServer, ExplainError, PARAMETERS};
use kaji_meta::Query;
use serde_json::json;

/// The path.
pub const PATH: &str = "/kaji/why";

impl Proxy {
    /// Explains what the parameters name; without any it says which there are.
    pub(crate) async fn why(&self, query: Option<&str>) -> Response<AnswerBody> {
        let query = Query::parse(query.unwrap_or_default());
        if query.is_empty() {
            return json_answer(StatusCode::OK, &json!({"parameters": PARAMETERS}));
        }
        let Ok(_permit) = self.explanations.try_acquire() else {
            return refusal(StatusCode::TOO_MANY_REQUESTS, "other explanations are being made");
        };
        let server = ApiServer::new(self.client.clone());
        let answer = kaji_explain::answer(&server, &query, &self.namespace, jiff::Timestamp::now());
        match tokio::time::timeout(RESPONSE_HEAD_TIMEOUT, answer).await {
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
}
