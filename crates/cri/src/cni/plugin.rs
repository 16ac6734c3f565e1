//! The program that a runtime starts for the network of a sandbox.
//!
//! Invariants: it keeps nothing, and changes nothing itself but the loopback interface of the namespace that it is given; what
//! the node cannot do now because it does not run fails, and is tried again by the runtime.
//!
//! Source: the CNI specification 1.0.0.

use super::{Answer, Failure, LOOPBACK, MOST, Request, code};
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// The variable that shows that a program runs as a plug-in.
pub const COMMAND: &str = "CNI_COMMAND";
/// Versions of configurations that are understood.
const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// What the node is given to do it.
const NODE_TIMEOUT: Duration = Duration::from_secs(90);

/// Runs as a plug-in, with the process's environment and standard streams.
#[must_use]
pub fn main() -> ExitCode {
    let mut text = vec![];
    let read = io::stdin().lock().take(MOST).read_to_end(&mut text);
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let answer = match read {
        Err(error) => Answer::Failed(Failure::new(code::IO, error)),
        Ok(_) => run(&variable, &text),
    };
    let version = serde_json::from_slice(&text).unwrap_or(Value::Null)["cniVersion"].clone();
    let (text, ended) = print(&answer, &version);
    match io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => ended,
        Err(_) => ExitCode::FAILURE,
    }
}

/// What is printed, and how the program ends.
fn print(answer: &Answer, version: &Value) -> (String, ExitCode) {
    let version = if version.is_string() { version.clone() } else { json!("1.0.0") };
    match answer {
        Answer::Done(Value::Null) => (String::new(), ExitCode::SUCCESS),
        Answer::Done(result) => {
            let mut result = result.clone();
            // The list of versions has its own.
            if result.get("supportedVersions").is_none() {
                result["cniVersion"] = version;
            }
            (result.to_string(), ExitCode::SUCCESS)
        }
        Answer::Failed(failure) => {
            let error = json!({"cniVersion": version, "code": failure.code, "msg": failure.msg});
            (error.to_string(), ExitCode::FAILURE)
        }
    }
}

/// Does what the environment asks for.
pub fn run(variable: &dyn Fn(&str) -> String, stdin: &[u8]) -> Answer {
    let command = variable(COMMAND);
    if command == "VERSION" {
        return Answer::Done(json!({"cniVersion": "1.0.0", "supportedVersions": VERSIONS}));
    }
    let config: Value = match serde_json::from_slice(stdin) {
        Ok(config) => config,
        Err(error) => return Answer::Failed(Failure::new(code::DECODING, error)),
    };
    let request = Request {
        command,
        container_id: variable("CNI_CONTAINERID"),
        namespace: variable("CNI_NETNS"),
        interface: variable("CNI_IFNAME"),
        arguments: variable("CNI_ARGS"),
        config,
    };
    let done = if request.config["type"] == LOOPBACK { loopback(&request) } else { ask(&request) };
    done.unwrap_or_else(Answer::Failed)
}

/// Brings the loopback interface up; it needs nothing else, and vanishes with its namespace.
fn loopback(request: &Request) -> Result<Answer, Failure> {
    if !matches!(request.command.as_str(), "ADD" | "CHECK") {
        return Ok(Answer::Done(Value::Null));
    }
    kaji_network::bring_up_loopback(Path::new(&request.namespace))
        .map_err(|error| Failure::new(code::NETWORK, error))?;
    if request.command == "CHECK" {
        return Ok(Answer::Done(Value::Null));
    }
    let previous = &request.config["prevResult"];
    if previous.is_object() {
        return Ok(Answer::Done(previous.clone()));
    }
    let address = |text: &str| json!({"address": text, "interface": 0});
    Ok(Answer::Done(json!({
        "interfaces": [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": request.namespace}],
        "ips": [address("127.0.0.1/8"), address("::1/128")],
    })))
}

/// Hands the request to the node.
fn ask(request: &Request) -> Result<Answer, Failure> {
    let socket = request.config["socket"].as_str().unwrap_or_default();
    if socket.is_empty() {
        return Err(Failure::new(code::CONFIGURATION, "the configuration names no socket"));
    }
    let socket = Path::new(socket);
    // A node that was removed from the machine has taken its pods' interfaces with it, and answers no more.
    if request.command == "DEL" && socket.parent().is_some_and(|directory| !directory.exists()) {
        return Ok(Answer::Done(Value::Null));
    }
    let unavailable = |error: io::Error| {
        Failure::new(code::TRY_AGAIN, format!("the node's pod network at {}: {error}", socket.display()))
    };
    let mut stream = UnixStream::connect(socket).map_err(unavailable)?;
    let text = serde_json::to_vec(request).map_err(|error| Failure::new(code::DECODING, error))?;
    let mut answer = vec![];
    let exchange = stream
        .set_read_timeout(Some(NODE_TIMEOUT))
        .and_then(|()| stream.set_write_timeout(Some(NODE_TIMEOUT)))
        .and_then(|()| stream.write_all(&text))
        .and_then(|()| stream.shutdown(Shutdown::Write))
        .and_then(|()| (&stream).take(MOST).read_to_end(&mut answer));
    exchange.map_err(unavailable)?;
    serde_json::from_slice(&answer)
        .map_err(|error| Failure::new(code::TRY_AGAIN, format!("the node's answer: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(variables: &[(&str, &str)], stdin: &str) -> String {
        let variable = |name: &str| {
            variables
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, value)| (*value).to_owned())
                .unwrap_or_default()
        };
        let answer = run(&variable, stdin.as_bytes());
        let version = serde_json::from_str(stdin).unwrap_or(Value::Null)["cniVersion"].clone();
        print(&answer, &version).0
    }

    #[test]
    fn what_cannot_be_passed_on_fails_with_a_code() {
        let config = r#"{"cniVersion":"0.4.0","type":"kaji","socket":"/nowhere/at/all/cni.sock"}"#;
        let all = [
            outcome(&[("CNI_COMMAND", "VERSION")], ""),
            outcome(&[("CNI_COMMAND", "ADD")], "{"),
            outcome(&[("CNI_COMMAND", "ADD")], r#"{"type":"kaji"}"#),
            outcome(&[("CNI_COMMAND", "ADD")], config),
            outcome(&[("CNI_COMMAND", "DEL")], config),
            outcome(&[("CNI_COMMAND", "DEL")], r#"{"type":"loopback"}"#),
            outcome(&[("CNI_COMMAND", "ADD"), ("CNI_NETNS", "/nowhere")], r#"{"type":"loopback"}"#),
        ];
        expect_test::expect![[r#"
            {"cniVersion":"1.0.0","supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}
            {"cniVersion":"1.0.0","code":6,"msg":"EOF while parsing an object at line 1 column 1"}
            {"cniVersion":"1.0.0","code":7,"msg":"the configuration names no socket"}
            {"cniVersion":"0.4.0","code":11,"msg":"the node's pod network at /nowhere/at/all/cni.sock: No such file or directory (os error 2)"}


            {"cniVersion":"1.0.0","code":100,"msg":"/nowhere: No such file or directory (os error 2)"}"#]].assert_eq(&all.join("\n"));
    }
}
