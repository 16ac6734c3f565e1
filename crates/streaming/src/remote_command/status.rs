//! What the client gets at the end: a `Status` from version 4 on, and the text of an error before.

use super::Action;
use crate::handshake::V5;
use kaji_containers::{Exit, RuntimeError};
use serde_json::Value;

/// How an outcome is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StatusFormat {
    version: Version,
    action: Action,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Text,
    V4,
    V5,
}

impl StatusFormat {
    /// Of a protocol by its name.
    pub(super) fn of(protocol: &str, action: Action) -> StatusFormat {
        let version = match protocol {
            V5 => Version::V5,
            _ if protocol.starts_with("v4.") => Version::V4,
            _ => Version::Text,
        };
        StatusFormat { version, action }
    }

    /// The bytes for the error stream; before version 4 there are none for a success.
    pub(super) fn text(&self, outcome: &Result<Exit, RuntimeError>) -> Option<String> {
        let (message, exit) = match (outcome, &self.action) {
            (Ok(_), Action::Attach) | (Ok(Exit { code: 0 }), Action::Exec { .. }) => {
                let success = r#"{"metadata":{},"status":"Success"}"#;
                return (self.version != Version::Text).then(|| success.to_owned());
            }
            (Ok(Exit { code }), Action::Exec { command }) => (self.exited(*code, command), Some(code)),
            (Err(error), Action::Exec { .. }) => {
                (format!("Internal error occurred: error executing command in container: {error}"), None)
            }
            (Err(error), Action::Attach) => {
                (format!("Internal error occurred: error attaching to container: {error}"), None)
            }
        };
        if self.version == Version::Text {
            return Some(message);
        }
        let message = Value::String(message);
        Some(match exit {
            Some(code) => format!(
                r#"{{"metadata":{{}},"status":"Failure","message":{message},"reason":"NonZeroExitCode","details":{{"causes":[{{"reason":"ExitCode","message":"{code}"}}]}}}}"#
            ),
            None => format!(
                r#"{{"metadata":{{}},"status":"Failure","message":{message},"reason":"InternalError","code":500}}"#
            ),
        })
    }

    /// Version 5 has the words of upstream's translation, the others those of containerd.
    fn exited(&self, code: i32, command: &[String]) -> String {
        let detail = match self.version {
            Version::V5 => format!("command terminated with exit code {code}"),
            Version::V4 | Version::Text => {
                format!("error executing command [{}], exit code {code}", command.join(" "))
            }
        };
        format!("command terminated with non-zero exit code: {detail}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn encodes_outcomes_in_each_version() {
        let exec = Action::Exec { command: vec!["sh".into(), "-c".into(), "exit 3".into()] };
        let outcomes = [
            Ok(Exit { code: 0 }),
            Ok(Exit { code: 3 }),
            Err(RuntimeError::NotFound("container \"a\" is gone".into())),
        ];
        let mut lines = vec![];
        for action in [exec, Action::Attach] {
            for protocol in ["", "channel.k8s.io", "v4.base64.channel.k8s.io", V5] {
                let format = StatusFormat::of(protocol, action.clone());
                for outcome in &outcomes {
                    lines.push(format.text(outcome).unwrap_or_else(|| "-".into()));
                }
            }
        }
        expect![[r#"
            -
            command terminated with non-zero exit code: error executing command [sh -c exit 3], exit code 3
            Internal error occurred: error executing command in container: container "a" is gone
            -
            command terminated with non-zero exit code: error executing command [sh -c exit 3], exit code 3
            Internal error occurred: error executing command in container: container "a" is gone
            {"metadata":{},"status":"Success"}
            {"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: error executing command [sh -c exit 3], exit code 3","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}
            {"metadata":{},"status":"Failure","message":"Internal error occurred: error executing command in container: container \"a\" is gone","reason":"InternalError","code":500}
            {"metadata":{},"status":"Success"}
            {"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: command terminated with exit code 3","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}
            {"metadata":{},"status":"Failure","message":"Internal error occurred: error executing command in container: container \"a\" is gone","reason":"InternalError","code":500}
            -
            -
            Internal error occurred: error attaching to container: container "a" is gone
            -
            -
            Internal error occurred: error attaching to container: container "a" is gone
            {"metadata":{},"status":"Success"}
            {"metadata":{},"status":"Success"}
            {"metadata":{},"status":"Failure","message":"Internal error occurred: error attaching to container: container \"a\" is gone","reason":"InternalError","code":500}
            {"metadata":{},"status":"Success"}
            {"metadata":{},"status":"Success"}
            {"metadata":{},"status":"Failure","message":"Internal error occurred: error attaching to container: container \"a\" is gone","reason":"InternalError","code":500}"#]].assert_eq(&lines.join("\n"));
    }
}
