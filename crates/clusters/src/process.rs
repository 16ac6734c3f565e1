//! Which process serves a cluster, and signals to it.
//!
//! Invariant: a signal reaches the process that is meant or none: it is sent through a descriptor of the process, which is opened
//! before its start is compared.

use crate::{ClusterError, io_error};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::{
    fs, io, thread,
    time::{Duration, Instant},
};

/// How often a process is looked for that is to end.
const INTERVAL: Duration = Duration::from_millis(20);

/// A process of this boot of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessId {
    /// The process's id.
    pub pid: i32,
    /// When it was started, in clock ticks since the machine's boot (field 22 of proc(5)'s stat).
    start_ticks: u64,
    /// The machine's boot.
    boot_id: String,
}

/// Changes with each boot of the machine.
fn boot_id() -> Option<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|id| id.trim().to_owned())
}

/// The start of a process that has not ended.
fn start_ticks(stat: &str) -> Option<u64> {
    // The second field is the program's name, in which anything may be.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?;
    // Field 3 was the state.
    fields.nth(18)?.parse().ok().filter(|_| !matches!(state, "Z" | "X"))
}

impl ProcessId {
    /// A process that has not ended.
    pub fn of(pid: i32) -> Option<ProcessId> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(ProcessId { pid, start_ticks: start_ticks(&stat)?, boot_id: boot_id()? })
    }

    /// This process.
    ///
    /// # Errors
    /// Without `/proc`.
    pub fn current() -> Result<ProcessId, ClusterError> {
        i32::try_from(std::process::id())
            .ok()
            .and_then(ProcessId::of)
            .ok_or_else(|| io_error("/proc/self/stat")(io::ErrorKind::NotFound.into()))
    }

    /// Whether it has not ended.
    pub fn is_alive(&self) -> bool {
        ProcessId::of(self.pid).as_ref() == Some(self)
    }

    /// The memory that it has in use, in bytes.
    pub fn resident_memory(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
    }

    /// Sends a signal. Nothing is sent to a process that has ended.
    fn signal(&self, signal: Signal) -> Result<(), ClusterError> {
        let failed = io_error(format!("process {}", self.pid));
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(()) };
        let sent = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) if self.is_alive() => pidfd_send_signal(descriptor, signal),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        match sent {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(failed(error.into())),
        }
    }

    /// Ends the process, and waits until it has. With `kill` it is killed if it has not ended in time.
    ///
    /// # Errors
    /// When it may not be sent signals, or does not end.
    pub fn stop(&self, patience: Duration, kill: bool) -> Result<(), ClusterError> {
        self.signal(Signal::TERM)?;
        if self.ends_within(patience) {
            return Ok(());
        }
        if kill {
            self.signal(Signal::KILL)?;
            if self.ends_within(patience) {
                return Ok(());
            }
        }
        Err(ClusterError::NotStopped { pid: self.pid, seconds: patience.as_secs() })
    }

    fn ends_within(&self, patience: Duration) -> bool {
        let begun = Instant::now();
        while self.is_alive() {
            if begun.elapsed() >= patience {
                return false;
            }
            thread::sleep(INTERVAL);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn reads_the_start_whatever_the_program_is_called() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(start_ticks(&format!("7 (a) b) {rest}")), Some(4711));
        assert_eq!(start_ticks(&format!("7 (a) {}", rest.replace('S', "Z"))), None);
        assert_eq!(start_ticks("7 (a) S 1"), None);
    }

    #[test]
    fn stops_the_process_that_is_meant_and_no_other() {
        let mut child = Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap();
        let process = ProcessId::of(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(process.is_alive());
        let former = ProcessId { start_ticks: process.start_ticks + 1, ..process.clone() };
        assert!(!former.is_alive());
        former.stop(Duration::from_secs(60), true).unwrap();
        assert!(process.is_alive() && child.try_wait().unwrap().is_none());
        process.stop(Duration::from_secs(60), false).unwrap();
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn a_process_that_ignores_the_signal_is_killed_only_if_asked() {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' TERM; echo; read x"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // It has set the trap.
        let mut line = [0];
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        let process = ProcessId::of(i32::try_from(child.id()).unwrap()).unwrap();
        let refused = process.stop(Duration::from_millis(50), false);
        assert!(matches!(refused, Err(ClusterError::NotStopped { .. })));
        process.stop(Duration::from_millis(50), true).unwrap();
        child.wait().unwrap();
    }
}
