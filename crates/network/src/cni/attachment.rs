//! The attachment of a pod to a network of CNI plug-ins, with all that its removal needs.

use super::config::{NetworkList, Plugin};
use super::execute::Caller;
use crate::records::SandboxRecord;
use kaji_containers::NetworkSetup;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::PathBuf;

/// A pod in a network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// As the runtime asked for it.
    pub setup: NetworkSetup,
    /// The configuration that it is made with.
    pub list: NetworkList,
    /// For plug-ins with capabilities.
    pub arguments: Map<String, Value>,
    /// Where its plug-ins are.
    pub programs: Vec<PathBuf>,
    /// Once all plug-ins have run.
    pub result: Option<Value>,
}

impl Attachment {
    /// Runs its plug-ins.
    pub fn caller(&self) -> Caller<'_> {
        Caller { programs: &self.programs, setup: Some(&self.setup) }
    }

    /// The request to a plug-in; the result of those before it is null for the first.
    pub fn request(&self, plugin: &Plugin, previous: &Value) -> Map<String, Value> {
        let mut request = self.list.request(plugin);
        let capabilities = plugin.config.get("capabilities").and_then(Value::as_object).into_iter().flatten();
        let wanted = capabilities.filter(|(_, enabled)| **enabled == Value::Bool(true)).map(|(name, _)| name);
        let arguments: Map<String, Value> =
            wanted.filter_map(|name| Some((name.clone(), self.arguments.get(name)?.clone()))).collect();
        if !arguments.is_empty() {
            request.insert("runtimeConfig".to_owned(), arguments.into());
        }
        if !previous.is_null() {
            request.insert("prevResult".to_owned(), previous.clone());
        }
        request
    }
}

impl SandboxRecord for Attachment {
    fn sandbox(&self) -> &str {
        &self.setup.sandbox_id
    }
}
