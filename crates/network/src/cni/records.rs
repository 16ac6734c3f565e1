//! Attachments on disk: one file a sandbox, with all that its removal needs.
//!
//! Invariant: a file is whole or absent, since it is renamed into place.

use super::config::{NetworkList, Plugin};
use super::execute::Caller;
use crate::NetworkError;
use kaji_containers::NetworkSetup;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::{fs, io};

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

/// The directory of attachments.
#[derive(Debug)]
pub struct Attachments(PathBuf);

impl Attachments {
    /// Makes the directory.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open(directory: PathBuf) -> Result<Attachments, NetworkError> {
        let shown = directory.display().to_string();
        fs::create_dir_all(&directory).map_err(NetworkError::io(shown))?;
        Ok(Attachments(directory))
    }

    /// Ids come from the runtime, which makes them; a path in one is a mistake.
    fn path(&self, sandbox: &str) -> Result<PathBuf, NetworkError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if sandbox.is_empty() || sandbox.len() > 200 || !sandbox.chars().all(plain) {
            return Err(NetworkError::Invalid(format!("invalid sandbox id {sandbox:?}")));
        }
        Ok(self.0.join(format!("{sandbox}.json")))
    }

    /// A sandbox's attachment.
    ///
    /// # Errors
    /// Those of the file system, and a file that does not decode.
    pub fn read(&self, sandbox: &str) -> Result<Option<Attachment>, NetworkError> {
        let path = self.path(sandbox)?;
        let shown = path.display().to_string();
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|error| NetworkError::Io(shown, io::Error::other(error))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(NetworkError::Io(shown, error)),
        }
    }

    /// All of them.
    ///
    /// # Errors
    /// Those of the file system, and a file that does not decode.
    pub fn all(&self) -> Result<Vec<Attachment>, NetworkError> {
        let shown = self.0.display().to_string();
        let mut found = vec![];
        for entry in fs::read_dir(&self.0).map_err(NetworkError::io(&shown))? {
            let name = entry.map_err(NetworkError::io(&shown))?.file_name();
            if let Some(sandbox) = name.to_str().and_then(|name| name.strip_suffix(".json")) {
                found.extend(self.read(sandbox)?);
            }
        }
        Ok(found)
    }

    /// Writes an attachment.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, attachment: &Attachment) -> Result<(), NetworkError> {
        let path = self.path(&attachment.setup.sandbox_id)?;
        let (shown, unfinished) = (path.display().to_string(), path.with_extension("new"));
        let text = serde_json::to_vec(attachment)
            .map_err(|error| NetworkError::Io(shown.clone(), io::Error::other(error)))?;
        fs::write(&unfinished, text)
            .and_then(|()| fs::rename(&unfinished, &path))
            .map_err(NetworkError::io(shown))
    }

    /// Removes an attachment, if it is on record.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn remove(&self, sandbox: &str) -> Result<(), NetworkError> {
        let path = self.path(sandbox)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(NetworkError::Io(path.display().to_string(), error))
            }
            _ => Ok(()),
        }
    }
}
