//! A second process of a test that is killed: the test program itself, running one test that otherwise does nothing.
//!
//! Invariants: the process ends with its handle; a process that says nothing for `SILENCE` is a failure, not a test that
//! waits for ever.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::Duration,
};

/// How long a process may say nothing.
const SILENCE: Duration = Duration::from_secs(120);

/// A process that runs one test of this program.
pub struct TestProcess {
    child: Child,
    lines: Receiver<String>,
}

impl TestProcess {
    /// Runs the test of this full name with one environment variable, by which the test finds out that it is this process.
    pub fn start(test: &str, variable: &str, value: impl AsRef<OsStr>) -> TestProcess {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(variable, value)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let (send, lines) = channel();
        std::thread::spawn(move || {
            // The receiver is dropped with the handle; then nothing is left to be done.
            BufReader::new(stdout).lines().map_while(Result::ok).all(|line| send.send(line).is_ok());
        });
        TestProcess { child, lines }
    }

    /// The next line that it prints, or nothing once it has ended.
    pub fn line(&mut self) -> Option<String> {
        match self.lines.recv_timeout(SILENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the process printed nothing for {SILENCE:?}"),
        }
    }

    /// Reads up to a line; panics when the process ends without it.
    pub fn skip_to(&mut self, wanted: &str) {
        while let Some(line) = self.line() {
            if line == wanted {
                return;
            }
        }
        panic!("the process ended before it printed {wanted:?}");
    }

    /// Kills it. The lines that it printed and that have not been read; the last one may be cut off.
    pub fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::iter::from_fn(|| self.line()).collect()
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        // A process that has ended cannot be killed, which is as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VARIABLE: &str = "KAJI_TESTING_PROCESS";

    /// Not a test but the process of the one below.
    #[test]
    fn child() {
        if std::env::var_os(VARIABLE).is_some() {
            println!("\nfirst\nsecond");
            loop {
                std::thread::park();
            }
        }
    }

    #[test]
    fn reads_lines_until_it_kills_the_process() {
        let mut process = TestProcess::start("process::tests::child", VARIABLE, "1");
        process.skip_to("first");
        assert_eq!(process.line().as_deref(), Some("second"));
        assert_eq!(process.kill(), [""; 0]);
    }
}
