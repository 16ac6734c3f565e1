//! Running a plug-in: a program with a request on standard input, and its variables in the environment.
//!
//! Invariants: a plug-in has a deadline, and is killed when it passes, or when it is not waited for any more; what it prints is bounded.

use super::INTERFACE;
use super::config::Plugin;
use crate::{NetworkError, bandwidth};
use kaji_containers::{NetworkSetup, Protocol};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

/// What a plug-in is given; an address may come from a server.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(120);
/// The most bytes that a plug-in may print.
const MOST: u64 = 1 << 20;

/// What is asked of a plug-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Add,
    Check,
    Delete,
    Collect,
    Status,
}

impl Call {
    fn command(self) -> &'static str {
        match self {
            Call::Add => "ADD",
            Call::Check => "CHECK",
            Call::Delete => "DEL",
            Call::Collect => "GC",
            Call::Status => "STATUS",
        }
    }

    /// As other runtimes name it in messages.
    fn word(self) -> &'static str {
        match self {
            Call::Add => "add",
            Call::Check => "check",
            Call::Delete => "delete",
            Call::Collect => "gc",
            Call::Status => "status",
        }
    }
}

/// Where plug-ins are, and the pod that they are asked about.
pub struct Caller<'a> {
    pub programs: &'a [PathBuf],
    pub setup: Option<&'a NetworkSetup>,
}

impl Caller<'_> {
    /// Runs a plug-in; what it answers, or null.
    ///
    /// # Errors
    /// [`NetworkError::Plugin`] with what it says.
    pub async fn call(
        &self,
        plugin: &Plugin,
        call: Call,
        request: Map<String, Value>,
    ) -> Result<Value, NetworkError> {
        let failed = |message: String| {
            NetworkError::Plugin(format!("plugin type={:?} failed ({}): {message}", plugin.kind, call.word()))
        };
        let program = self.find(&plugin.kind)?;
        let mut command = Command::new(&program);
        command.env("CNI_COMMAND", call.command()).env("CNI_PATH", joined(self.programs));
        if let Some(setup) = self.setup {
            command.envs(variables(setup, call));
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let child = command.spawn().map_err(|error| failed(format!("{}: {error}", program.display())))?;
        let request = Value::Object(request).to_string();
        let finished = tokio::time::timeout(PLUGIN_TIMEOUT, finish(child, request.as_bytes())).await;
        let (success, output, errors) = finished
            .map_err(|_| failed(format!("it has not ended within {} seconds", PLUGIN_TIMEOUT.as_secs())))?
            .map_err(|error| failed(error.to_string()))?;
        let printed = serde_json::from_slice::<Value>(&output);
        if !success {
            let said = printed.as_ref().ok().and_then(said);
            let errors = String::from_utf8_lossy(&errors);
            return Err(failed(said.unwrap_or_else(|| {
                let words = [String::from_utf8_lossy(&output).trim().to_owned(), errors.trim().to_owned()];
                let words = words.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(": ");
                if words.is_empty() { "netplugin failed with no error message".to_owned() } else { words }
            })));
        }
        match (call, printed) {
            (Call::Add, printed) => printed.map_err(|error| failed(format!("its result: {error}"))),
            _ => Ok(Value::Null),
        }
    }

    fn find(&self, name: &str) -> Result<PathBuf, NetworkError> {
        let mut candidates = self.programs.iter().map(|directory| directory.join(name));
        candidates.find(|path| path.is_file()).ok_or_else(|| {
            let shown: Vec<_> = self.programs.iter().map(|path| path.display().to_string()).collect();
            NetworkError::Plugin(format!("failed to find plugin {name:?} in path [{}]", shown.join(" ")))
        })
    }
}

/// Message and details of an error as plug-ins print it.
fn said(error: &Value) -> Option<String> {
    let text = |field: &str| error.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
    let message = text("msg")?;
    Some(text("details").map_or_else(|| message.to_owned(), |details| format!("{message}; {details}")))
}

fn joined(programs: &[PathBuf]) -> String {
    programs.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(":")
}

fn variables(setup: &NetworkSetup, call: Call) -> Vec<(&'static str, String)> {
    let pod = &setup.metadata;
    let arguments = format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
        pod.namespace, pod.name, setup.sandbox_id, pod.uid
    );
    // A namespace that is gone cannot be named; what is kept outside of it is removed all the same.
    let gone = call == Call::Delete && !is_namespace(&setup.namespace);
    let namespace = if gone { String::new() } else { setup.namespace.display().to_string() };
    vec![
        ("CNI_CONTAINERID", setup.sandbox_id.clone()),
        ("CNI_NETNS", namespace),
        ("CNI_IFNAME", INTERFACE.to_owned()),
        ("CNI_ARGS", arguments),
    ]
}

/// A pin that was unmounted is an empty file.
fn is_namespace(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev());
    matches!((device(path), device(Path::new("/proc/self/ns/net"))), (Ok(one), Ok(other)) if one == other)
}

/// Whether it succeeded, what it printed, and its complaints.
async fn finish(mut child: Child, request: &[u8]) -> std::io::Result<(bool, Vec<u8>, Vec<u8>)> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        if let Some(mut stdin) = stdin {
            // One that does not read its request says why.
            let _ = stdin.write_all(request).await;
        }
    };
    let (mut output, mut errors) = (vec![], vec![]);
    let read = async {
        match stdout {
            Some(stdout) => stdout.take(MOST).read_to_end(&mut output).await,
            None => Ok(0),
        }
    };
    let read_errors = async {
        match stderr {
            Some(stderr) => stderr.take(MOST).read_to_end(&mut errors).await,
            None => Ok(0),
        }
    };
    let ((), read, read_errors) = tokio::join!(write, read, read_errors);
    read?;
    read_errors?;
    Ok((child.wait().await?.success(), output, errors))
}

/// What plug-ins with capabilities get to know of a pod, by the names of the capabilities.
///
/// # Errors
/// Limits of bandwidth that are none.
pub fn capability_arguments(
    setup: &NetworkSetup,
    pod_cidrs: &[String],
) -> Result<Map<String, Value>, NetworkError> {
    let mut arguments = Map::new();
    let ports = setup.port_mappings.iter().filter(|port| port.host_port != 0).map(|port| {
        let protocol = match port.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        };
        let host_ip = port.host_ip.map(|address| address.to_string()).unwrap_or_default();
        json!({"hostPort": port.host_port, "containerPort": port.container_port, "protocol": protocol, "hostIP": host_ip})
    });
    let ports: Vec<Value> = ports.collect();
    if !ports.is_empty() {
        arguments.insert("portMappings".to_owned(), ports.into());
    }
    let limits = bandwidth::limits(&setup.annotations)?;
    let mut bandwidth = Map::new();
    for (way, bytes) in [("ingress", limits.ingress), ("egress", limits.egress)] {
        if let Some(bytes) = bytes {
            // In bits. The burst is what other runtimes ask for.
            bandwidth.insert(format!("{way}Rate"), (bytes * 8).into());
            bandwidth.insert(format!("{way}Burst"), u32::MAX.into());
        }
    }
    if !bandwidth.is_empty() {
        arguments.insert("bandwidth".to_owned(), bandwidth.into());
    }
    if !pod_cidrs.is_empty() {
        let ranges: Vec<Value> = pod_cidrs.iter().map(|cidr| json!([{"subnet": cidr}])).collect();
        arguments.insert("ipRanges".to_owned(), ranges.into());
    }
    if !setup.annotations.is_empty() {
        arguments.insert("io.kubernetes.cri.pod-annotations".to_owned(), json!(setup.annotations));
    }
    Ok(arguments)
}
