//! What `kaji why` says, as JSON, with the caller's credentials.

use crate::{AnswerBody, PATIENCE, Proxy, json_answer, refusal};
use http::{Response, StatusCode};
use kaji_explain::{ApiServer, ExplainError, Report, Subject, explain, explain_text};
use kaji_meta::Query;

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
        let server = ApiServer::new(self.client.clone());
        let (namespace, now) = (query.first("namespace").unwrap_or(&self.namespace), jiff::Timestamp::now());
        let subject = Subject::parse(&[query.first("subject").unwrap_or_default().to_owned()]);
        if let Some(text) = query.first("refusal") {
            let report = explain_text(&server, text, subject.as_ref().ok(), namespace, now).await?;
            return report
                .ok_or_else(|| ExplainError::Subject("this is no refusal of the API server".to_owned()));
        }
        explain(&server, &subject?, namespace, now).await
    }
}
