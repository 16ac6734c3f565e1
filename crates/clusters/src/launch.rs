//! Starts a cluster's server in the background, and waits until it is ready.
//!
//! Invariants: the server outlives the terminal: it has no descriptor of it, and leads a session of its own (see
//! [`lead_session`]). A server that ends before it is ready is reported with the end of its log.

use crate::{ClusterError, ClusterRecord, State, io_error, log};
use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The flag of a server in the background.
pub const FLAG: &str = "--in-background";
/// How often the record is looked at.
const INTERVAL: Duration = Duration::from_millis(10);
/// Of the log of a server that has ended.
const LINES: usize = 20;

/// A server that is started.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The program, this one.
    pub program: PathBuf,
    /// Of the cluster that is to be started; its arguments and environment are the server's.
    pub record: &'a ClusterRecord,
    /// The cluster's directory, which exists.
    pub directory: &'a Path,
}

impl Launch<'_> {
    /// Starts the server and waits until it is ready. `progress` is called now and then with the time that has passed.
    ///
    /// # Errors
    /// When it cannot be started, ends, or is not ready in time.
    pub fn run(
        &self,
        patience: Duration,
        mut progress: impl FnMut(Duration),
    ) -> Result<ClusterRecord, ClusterError> {
        let begun = Instant::now();
        let mut server = self.spawn()?;
        loop {
            let exited = server.try_wait().map_err(io_error("the server"))?.is_some();
            // Read after its end was asked for, so that a server that was ready is not missed.
            if let Some(record) = ClusterRecord::read(self.directory)?
                && record.state == State::Ready
                && record.running().is_some_and(|process| i64::from(process.pid) == i64::from(server.id()))
            {
                return Ok(record);
            }
            if exited {
                let text = log::last_lines(self.directory, LINES);
                return Err(ClusterError::Ended { log: log::path(self.directory), text });
            }
            if begun.elapsed() >= patience {
                let log = log::path(self.directory);
                return Err(ClusterError::NotReady { seconds: patience.as_secs(), log });
            }
            progress(begun.elapsed());
            thread::sleep(INTERVAL);
        }
    }

    fn spawn(&self) -> Result<Child, ClusterError> {
        let output = log::open_for_server(self.directory)?;
        let errors = output.try_clone().map_err(io_error(log::path(self.directory).display()))?;
        let mut command = Command::new(&self.program);
        command.arg("up").args(&self.record.arguments).arg(FLAG).envs(&self.record.environment);
        if !self.record.working_directory.as_os_str().is_empty() {
            command.current_dir(&self.record.working_directory);
        }
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        command.spawn().map_err(io_error(self.program.display()))
    }
}

/// Makes this process, a server in the background, the leader of a session of its own: signals of the terminal do not reach it.
///
/// # Errors
/// When it leads a process group already.
pub fn lead_session() -> Result<(), ClusterError> {
    rustix::process::setsid().map(drop).map_err(|error| io_error("setsid")(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    /// A program that is a server: what it is given to do, as a shell script.
    fn launch(script: &str) -> Result<ClusterRecord, ClusterError> {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("server");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut record = ClusterRecord::new("dev".parse().unwrap(), vec!["--port=1".into()]);
        record.environment = [("DIRECTORY".to_owned(), dir.path().display().to_string())].into();
        record.write(dir.path()).unwrap();
        let launch = Launch { program, record: &record, directory: dir.path() };
        launch.run(Duration::from_secs(60), |_| ())
    }

    #[test]
    fn reports_the_end_of_the_log_of_a_server_that_ends() {
        let error = launch(r#"echo "cannot start: $*" >&2; exit 1"#).unwrap_err();
        let ClusterError::Ended { text, .. } = error else { panic!("{error}") };
        assert_eq!(text, "cannot start: up --port=1 --in-background");
    }

    #[test]
    fn a_server_is_ready_when_its_record_says_so() {
        let script = r#"
            start=$(sed 's/.*) //' /proc/$$/stat | cut -d' ' -f20)
            boot=$(cat /proc/sys/kernel/random/boot_id)
            sed "s/\"Starting\"/\"Ready\"/; s/\"process\": null/\"process\": {\"pid\": $$, \"startTicks\": $start, \"bootId\": \"$boot\"}/" \
                $DIRECTORY/cluster.json > $DIRECTORY/new && mv $DIRECTORY/new $DIRECTORY/cluster.json
            read x < $DIRECTORY/server; while :; do sleep 0.01; [ -d $DIRECTORY ] || exit; done"#;
        let record = launch(script).unwrap();
        assert_eq!(record.state, State::Ready);
        record.process.unwrap().stop(Duration::from_secs(60), true).unwrap();
    }
}
