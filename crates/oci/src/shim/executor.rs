//! The last steps before a container's program: it is looked up, the filter is loaded, capabilities are dropped, exec.
//!
//! Invariants:
//! - The program gets the variables of its configuration in their order there, which `libcontainer`'s own map loses.
//! - The filter is loaded before capabilities are dropped: without `no_new_privs` that needs CAP_SYS_ADMIN. After the exec the
//!   process has no capability that its configuration does not name.
//! - Failures are reported over the result pipe in the words of containerd and runc; the pipe closes when the exec succeeds.

use super::build::Outcome;
use super::system::{default_signals, load_filter};
use crate::records::FinalCapabilities;
use caps::{CapSet, Capability, CapsHashSet};
use libcontainer::oci_spec::runtime::Spec;
use libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, waitpid};
use seccompiler::BpfProgram;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// See the module.
#[derive(Clone)]
pub struct ContainerExecutor {
    /// In the order in which they are loaded.
    pub filters: Vec<BpfProgram>,
    /// At exec.
    pub capabilities: FinalCapabilities,
    /// Report of what failed.
    pub result: Arc<File>,
    /// There is no program.
    pub reaper: bool,
    /// Entered at last: `libcontainer` does not, for further processes.
    pub user_namespace: Option<Arc<File>>,
    /// The directory of the user that `libcontainer` finds in the container, for a configuration without `HOME`.
    pub home: OnceCell<String>,
}

impl ContainerExecutor {
    fn report(&self, message: &str) {
        let mut line = serde_json::to_vec(&Outcome { pid: 0, error: message.to_owned() }).unwrap_or_default();
        line.push(b'\n');
        // The pipe breaks only when the shim has ended; then there is no process to report to.
        let _ = (&*self.result).write_all(&line);
    }

    fn confine(&self) -> io::Result<()> {
        if let Some(user) = &self.user_namespace {
            // The process has the ids that it shall have already, and all capabilities in the namespace from now on.
            nix::sched::setns(&**user, nix::sched::CloneFlags::CLONE_NEWUSER)?;
        }
        for filter in &self.filters {
            load_filter(filter)?;
        }
        let other = |error: caps::errors::CapsError| io::Error::other(error.to_string());
        let bounding = capability_set(&self.capabilities.bounding)?;
        let ambient = capability_set(&self.capabilities.ambient)?;
        for capability in caps::all().difference(&bounding) {
            if caps::has_cap(None, CapSet::Bounding, *capability).unwrap_or(false) {
                caps::drop(None, CapSet::Bounding, *capability).map_err(other)?;
            }
        }
        caps::clear(None, CapSet::Ambient).map_err(other)?;
        caps::set(None, CapSet::Inheritable, &ambient).map_err(other)?;
        caps::set(None, CapSet::Effective, &bounding).map_err(other)?;
        caps::set(None, CapSet::Permitted, &bounding).map_err(other)?;
        for capability in ambient {
            caps::raise(None, CapSet::Ambient, capability).map_err(other)?;
        }
        Ok(())
    }
}

fn capability_set(names: &[String]) -> io::Result<CapsHashSet> {
    let parse = |name: &String| {
        name.parse::<Capability>().map_err(|_| io::Error::other(format!("unknown capability {name:?}")))
    };
    names.iter().map(parse).collect()
}

impl Executor for ContainerExecutor {
    fn validate(&self, spec: &Spec) -> Result<(), ExecutorValidationError> {
        if self.reaper {
            return Ok(());
        }
        let process = spec.process().as_ref();
        let name = process.and_then(|p| p.args().as_ref()).and_then(|args| args.first());
        let path = value(process.and_then(|p| p.env().as_deref()).unwrap_or_default(), "PATH");
        let found = look_up(name.map_or("", String::as_str), path.unwrap_or_default());
        found.map(|_| ()).map_err(|message| {
            self.report(&message);
            ExecutorValidationError::ArgValidationError(message)
        })
    }

    fn setup_envs(&self, variables: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        // This process keeps its own environment: the program gets one that is made for it.
        if let Some(home) = variables.get("HOME") {
            self.home.get_or_init(|| home.clone());
        }
        Ok(())
    }

    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        if self.reaper {
            return self.reap_for_ever();
        }
        let process = spec.process().as_ref();
        let args = process.and_then(|p| p.args().as_deref()).unwrap_or_default();
        let configured = process.and_then(|p| p.env().as_deref()).unwrap_or_default();
        let path = value(configured, "PATH").unwrap_or_default();
        let failure = match look_up(args.first().map_or("", String::as_str), path) {
            Err(message) => message,
            Ok(program) => match self.confine() {
                Err(error) => format!("unable to apply the security profile: {error}"),
                Ok(()) => {
                    let environment = environment(configured, self.home.get().map(String::as_str));
                    let error = execute(&program, args, &environment);
                    format!("exec {}: {}", program.display(), text(&error))
                }
            },
        };
        self.report(&failure);
        Err(ExecutorError::Other(failure))
    }
}

impl ContainerExecutor {
    /// The first process of a pid namespace that a pod's containers share.
    fn reap_for_ever(&self) -> Result<(), ExecutorError> {
        let failed = |error: &dyn std::fmt::Display| ExecutorError::Other(error.to_string());
        self.confine().map_err(|error| failed(&error))?;
        let mut signals = SigSet::empty();
        for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT] {
            signals.add(signal);
        }
        signals.thread_block().map_err(|error| failed(&error))?;
        nix::unistd::close(self.result.as_raw_fd()).map_err(|error| failed(&error))?;
        loop {
            match signals.wait() {
                Ok(Signal::SIGTERM | Signal::SIGINT) => std::process::exit(0),
                Ok(_) => while waitpid(None, Some(WaitPidFlag::WNOHANG)).is_ok_and(|s| s.pid().is_some()) {},
                Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(failed(&error)),
            }
        }
    }
}

/// The value of a variable; the last one counts.
fn value<'a>(variables: &'a [String], name: &str) -> Option<&'a str> {
    let of =
        |variable: &'a String| variable.split_once('=').filter(|(n, _)| *n == name).map(|(_, value)| value);
    variables.iter().rev().find_map(of)
}

/// The variables of a program: those of its configuration, in order, and `HOME` last where that has none. As runc has it, a user that the
/// container does not know is at home in `/`.
fn environment(configured: &[String], home: Option<&str>) -> Vec<String> {
    if value(configured, "HOME").is_some_and(|home| !home.is_empty()) {
        return configured.to_vec();
    }
    let kept = configured.iter().filter(|variable| !variable.starts_with("HOME=")).cloned();
    kept.chain([format!("HOME={}", home.unwrap_or("/"))]).collect()
}

/// Becomes a program; answers why it did not.
fn execute(program: &Path, args: &[String], environment: &[String]) -> io::Error {
    let strings =
        |list: &[String]| list.iter().map(|text| CString::new(text.as_str())).collect::<Result<Vec<_>, _>>();
    let texts = CString::new(program.as_os_str().as_bytes())
        .and_then(|program| Ok((program, strings(args)?, strings(environment)?)));
    let (program, args, environment) = match texts {
        Ok(texts) => texts,
        // A text with a zero byte.
        Err(_) => return io::Error::from_raw_os_error(libc::EINVAL),
    };
    // A program inherits both: the shim blocks SIGCHLD.
    if let Err(error) = SigSet::empty().thread_set_mask() {
        return error.into();
    }
    default_signals();
    match nix::unistd::execve(&program, &args, &environment) {
        Ok(never) => match never {},
        Err(error) => error.into(),
    }
}

/// Go's words for an error of the system, which clients match on.
fn text(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ if error.raw_os_error() == Some(libc::ENOEXEC) => "exec format error".to_owned(),
        _ if error.raw_os_error() == Some(libc::EINVAL) => "invalid argument".to_owned(),
        _ if error.raw_os_error() == Some(libc::E2BIG) => "argument list too long".to_owned(),
        _ => error.to_string(),
    }
}

/// The file of a program, and otherwise what runc says.
fn look_up(name: &str, path: &str) -> Result<PathBuf, String> {
    if name.contains('/') {
        return match check(Path::new(name)) {
            Ok(()) => Ok(name.into()),
            Err(error) => Err(format!("exec: {name:?}: stat {name}: {}", text(&error))
                .replace(&format!("stat {name}: permission denied"), "permission denied")),
        };
    }
    let mut denied = false;
    for directory in path.split(':') {
        let directory = if directory.is_empty() { "." } else { directory };
        let candidate = Path::new(directory).join(name);
        match check(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(error) => denied |= error.kind() == io::ErrorKind::PermissionDenied,
        }
    }
    let why =
        if denied && !name.is_empty() { "permission denied" } else { "executable file not found in $PATH" };
    Err(format!("exec: {name:?}: {why}"))
}

fn check(path: &Path) -> io::Result<()> {
    let metadata = std::fs::metadata(path)?;
    if metadata.is_dir() {
        return Err(io::Error::other("is a directory"));
    }
    if metadata.permissions().mode() & 0o111 == 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_stay_in_order() {
        let list = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let made = |configured: &str, home| environment(&list(configured), home).join(" ");
        assert_eq!(made("Z=1 A=2 PATH=/bin M=3", Some("/root")), "Z=1 A=2 PATH=/bin M=3 HOME=/root");
        assert_eq!(made("Z=1 HOME=/own A=2", Some("/root")), "Z=1 HOME=/own A=2");
        assert_eq!(made("HOME= Z=1", Some("/root")), "Z=1 HOME=/root");
        assert_eq!(made("Z=1", None), "Z=1 HOME=/");
        assert_eq!(value(&list("A=1 A=b=c AB=3"), "A"), Some("b=c"));
    }

    #[test]
    fn says_what_runc_says() {
        let missing = look_up("no-such-program", "/bin:/usr/bin").unwrap_err();
        assert_eq!(missing, "exec: \"no-such-program\": executable file not found in $PATH");
        let missing = look_up("/no/such/program", "").unwrap_err();
        assert_eq!(missing, "exec: \"/no/such/program\": stat /no/such/program: no such file or directory");
        let denied = look_up("/etc/passwd", "").unwrap_err();
        assert_eq!(denied, "exec: \"/etc/passwd\": permission denied");
        assert!(look_up("sh", "/nowhere:/bin").is_ok());
    }
}
