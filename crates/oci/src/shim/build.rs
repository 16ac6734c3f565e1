//! Building containers' processes with `libcontainer`, in a child of the shim each.
//!
//! Invariant: the shim itself is not changed (`libcontainer` sets its caller's OOM score, dumpable flag and working directory),
//! does not wait, and does not keep the memory. The process that is built becomes a child of the shim, which is the reaper of
//! its descendants, when the builder ends.

use super::executor::ContainerExecutor;
use super::system::fork_child;
use crate::records::ShimConfig;
use crate::seccomp;
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where `libcontainer` keeps its state, in the bundle.
pub const STATE: &str = "libcontainer";

/// A line in the result pipe.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// The process, as the node sees it.
    pub pid: i32,
    /// Why there is none.
    pub error: String,
}

/// What a built process gets for its standard streams.
pub enum Stdio {
    /// Descriptors; `/dev/null` for those that are absent.
    Files([Option<OwnedFd>; 3]),
    /// A terminal, the other side of which is sent to this socket.
    Terminal(PathBuf),
}

/// What to build.
pub enum Target {
    /// The container, of the bundle's configuration.
    Init,
    /// A further process in it; an OCI process in a file.
    Exec(PathBuf),
}

/// A process that is being built. The pipe closes when the program runs, or has failed to.
pub struct Building {
    pipe: File,
    received: Vec<u8>,
}

impl std::os::fd::AsFd for Building {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

impl Building {
    /// Starts to build.
    ///
    /// # Errors
    /// When there is no process or no pipe to be had, or the seccomp profile is wrong.
    pub fn start(bundle: &Path, config: &ShimConfig, target: Target, stdio: Stdio) -> io::Result<Building> {
        let filters = match &config.seccomp {
            Some(profile) => seccomp::compile(profile).map_err(io::Error::other)?,
            None => vec![],
        };
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&read, true)?;
        let executor = ContainerExecutor {
            filters,
            capabilities: config.capabilities.clone(),
            result: Arc::new(File::from(write)),
            reaper: config.reaper && matches!(target, Target::Init),
            user_namespace: match (&config.staging, &target) {
                (Some(staging), Target::Exec(_)) => Some(Arc::new(File::open(&staging.user)?)),
                _ => None,
            },
            home: std::cell::OnceCell::new(),
        };
        fork_child(move || {
            let result = executor.result.clone();
            let staged = match (&config.staging, &target) {
                (Some(staging), Target::Init) => staging.prepare(true),
                (Some(staging), Target::Exec(_)) => staging.prepare(false),
                (None, _) => Ok(()),
            };
            let built = match staged {
                Ok(()) => build(bundle, &config.id, target, stdio, executor),
                Err(error) => Err(format!("error preparing the container's mounts: {error}")),
            };
            let outcome = match built {
                Ok(pid) => Outcome { pid, error: String::new() },
                Err(error) => Outcome { pid: 0, error },
            };
            let mut line = serde_json::to_vec(&outcome).unwrap_or_default();
            line.push(b'\n');
            // The shim has ended if this fails; the process is then found by its cgroup.
            let _ = (&*result).write_all(&line);
        })?;
        Ok(Building { pipe: File::from(read), received: vec![] })
    }

    /// Reads what is in the pipe. The process id or the error, once the pipe is closed.
    pub fn advance(&mut self) -> Option<Result<i32, String>> {
        let mut buffer = [0; 4096];
        match self.pipe.read(&mut buffer) {
            Ok(0) => Some(self.conclude()),
            Ok(length) => {
                // Messages are short; a container cannot write here.
                self.received.extend_from_slice(&buffer[..length]);
                None
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {
                None
            }
            Err(error) => Some(Err(error.to_string())),
        }
    }

    /// The first error counts: it is the cause of the others.
    fn conclude(&self) -> Result<i32, String> {
        let mut pid = 0;
        for line in self.received.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let outcome: Outcome = serde_json::from_slice(line).map_err(|error| error.to_string())?;
            if !outcome.error.is_empty() {
                return Err(outcome.error);
            }
            pid = outcome.pid;
        }
        if pid > 0 { Ok(pid) } else { Err("the process that creates the container was killed".to_owned()) }
    }
}

fn build(
    bundle: &Path,
    id: &str,
    target: Target,
    stdio: Stdio,
    executor: ContainerExecutor,
) -> Result<i32, String> {
    let words = |error: libcontainer::error::LibcontainerError| chain(&error);
    let mut builder = ContainerBuilder::new(id.to_owned(), SyscallType::default())
        .with_root_path(bundle.join(STATE))
        .map_err(words)?
        .with_executor(executor);
    match stdio {
        Stdio::Terminal(socket) => builder = builder.with_console_socket(Some(socket)),
        Stdio::Files([stdin, stdout, stderr]) => {
            builder = builder
                .with_stdin(or_null(stdin)?)
                .with_stdout(or_null(stdout)?)
                .with_stderr(or_null(stderr)?);
        }
    }
    match target {
        Target::Init => {
            let mut container =
                builder.as_init(bundle).with_systemd(false).with_detach(true).build().map_err(words)?;
            let pid = container.pid().map_or(0, |pid| pid.as_raw());
            container.start().map_err(words)?;
            Ok(pid)
        }
        Target::Exec(process) => {
            let builder = builder.as_tenant().with_process(Some(process)).with_detach(true);
            builder.build().map(|pid| pid.as_raw()).map_err(words)
        }
    }
}

fn or_null(file: Option<OwnedFd>) -> Result<OwnedFd, String> {
    match file {
        Some(file) => Ok(file),
        None => match File::options().read(true).write(true).open("/dev/null") {
            Ok(null) => Ok(null.into()),
            Err(error) => Err(format!("open /dev/null: {error}")),
        },
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    text
}
