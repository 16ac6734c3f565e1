//! Restoring a recorded state: the object is written as it was then, or created anew.
//!
//! Invariants:
//! - What the server would make of it is asked first, by a dry run; what is written afterwards is the same, and only if the object has not
//!   changed meanwhile.
//! - A state with values that are not kept is not written.

use super::{ObjectHistory, Revision, check_restorable, fields::FieldChange, unreadable};
use crate::{ApiServer, ExplainError, RequestError, api::Api, history::changes, paths};
use http::Method;
use kaji_meta::object;
use serde_json::Value;

/// What the server sets, and a state has of another time.
const SET_BY_SERVER: &[&str] = &[
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];
/// The field manager of what is restored.
const MANAGER: &str = "kaji-restore";

/// A state that can be written, and what the server would make of it.
pub struct Restoration {
    method: Method,
    path: String,
    body: Value,
    changes: Vec<FieldChange>,
}

impl Restoration {
    /// Asks the server what it would make of a recorded state.
    ///
    /// # Errors
    /// When the state cannot be written: values of it are not kept, the object is being deleted, or the server refuses it.
    pub async fn prepare(
        server: &ApiServer,
        history: &ObjectHistory,
        revision: &Revision,
    ) -> Result<Restoration, ExplainError> {
        let text = format!("revision {} has no state", revision.revision);
        let state = revision.state.as_ref().ok_or(ExplainError::NotFound(text))?;
        check_restorable(state)?;
        let present = match server.get(&history.path).await {
            Ok(object) => Some(object),
            Err(RequestError::NotFound(_)) => None,
            Err(other) => return Err(unreadable(other)),
        };
        if present.as_ref().and_then(object::deletion_timestamp).is_some() {
            let text = format!("{}/{} is being deleted", history.resource, history.name);
            return Err(ExplainError::Unreadable(text));
        }
        let at =
            |name: &str| paths::path(object::api_version(state), &history.namespace, &history.plural, name);
        let (method, path) = match &present {
            Some(_) => (Method::PUT, at(&history.name)),
            None => (Method::POST, at("")),
        };
        // In the version of the state, with which the answer is compared.
        let before = match &present {
            Some(_) => server.get(&path).await.map_err(unreadable)?,
            None => Value::Null,
        };
        let body = body(state, &before);
        let dry_run = format!("{path}?fieldManager={MANAGER}&dryRun=All");
        let after = server.write(method.clone(), &dry_run, &body).await.map_err(unreadable)?;
        Ok(Restoration { method, path, body, changes: changes(&before, &after) })
    }

    /// Whether the object is not there and is created anew.
    pub fn creates(&self) -> bool {
        self.method == Method::POST
    }

    /// What would change.
    pub fn changes(&self) -> &[FieldChange] {
        &self.changes
    }

    /// Writes it. The answer is the revision that the object has then.
    ///
    /// # Errors
    /// What the server refuses: the object has changed since the dry run.
    pub async fn write(self, server: &ApiServer) -> Result<String, ExplainError> {
        let path = format!("{}?fieldManager={MANAGER}", self.path);
        let written = server.write(self.method, &path, &self.body).await.map_err(unreadable)?;
        Ok(object::resource_version(&written).to_owned())
    }
}

/// The state without what the server sets, as a change of what is there now.
fn body(state: &Value, present: &Value) -> Value {
    let mut body = state.clone();
    let metadata = object::meta_mut(&mut body);
    for field in SET_BY_SERVER {
        metadata.remove(*field);
    }
    for field in ["resourceVersion", "uid"] {
        if let Some(value) = object::at(present, &["metadata", field]) {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_state_is_written_as_a_change_of_what_is_there() {
        let metadata = json!({"name": "m", "uid": "u", "resourceVersion": "3", "generation": 2, "labels": {"a": "b"},
            "managedFields": [], "creationTimestamp": "2026-01-01T00:00:00Z"});
        let state = json!({"kind": "ConfigMap", "metadata": metadata, "data": {"a": "1"}});
        let kept = json!({"name": "m", "labels": {"a": "b"}});
        assert_eq!(
            body(&state, &Value::Null),
            json!({"kind": "ConfigMap", "metadata": kept, "data": {"a": "1"}})
        );
        let present = json!({"metadata": {"name": "m", "uid": "v", "resourceVersion": "9"}, "data": {}});
        let changed = body(&state, &present);
        assert_eq!(changed["metadata"]["uid"], "v");
        assert_eq!(changed["metadata"]["resourceVersion"], "9");
        assert_eq!(changed["data"], json!({"a": "1"}));
    }
}
