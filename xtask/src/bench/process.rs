//! The server's processes seen from outside: starting them, their memory, their processor time. Linux's /proc only.
//!
//! Invariants: nothing here fails a measurement for want of a process (memory is then simply unknown); what was started
//! here is ended here, in whatever way the run ends.

use super::Error;
use std::{
    fs, io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Ticks of a second in /proc/PID/stat (USER_HZ, 100 on every architecture that Linux has a stable ABI for).
const TICKS: u64 = 100;
/// How often memory is looked at while a peak is sought.
const SAMPLE: Duration = Duration::from_millis(10);
/// How long a server may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(15);

/// Which processes are the server's.
#[derive(Clone, Debug)]
pub enum Server {
    /// Not stated.
    Unknown,
    /// These.
    Given(Vec<u32>),
    /// This one and its descendants.
    Tree(u32),
}

impl Server {
    fn pids(&self) -> Vec<u32> {
        match self {
            Server::Unknown => vec![],
            Server::Given(pids) => pids.clone(),
            Server::Tree(root) => descendants(*root, &parents()),
        }
    }

    /// Resident memory in bytes.
    pub fn memory(&self) -> Option<u64> {
        total(&self.pids(), "VmRSS")
    }

    /// Processor time so far.
    pub fn cpu(&self) -> Option<Duration> {
        let times: Vec<Duration> = self.pids().into_iter().filter_map(|pid| Some(stat(pid)?.1)).collect();
        (!times.is_empty()).then(|| times.iter().sum())
    }

    /// Starts to look for the highest resident memory.
    pub fn watch_peak(&self) -> Option<Peak> {
        let pids = self.pids();
        let before = total(&pids, "VmRSS")?;
        // "5" resets the high-water mark (proc(5)); where that is not allowed, sampling has to do.
        let reset = match pids.as_slice() {
            [pid] => fs::write(format!("/proc/{pid}/clear_refs"), "5").is_ok(),
            _ => false,
        };
        let stop = Arc::new(AtomicBool::new(false));
        let sampler = {
            let (stop, pids) = (stop.clone(), pids.clone());
            thread::spawn(move || {
                let mut highest = 0;
                while !stop.load(Ordering::Relaxed) {
                    highest = highest.max(total(&pids, "VmRSS").unwrap_or(0));
                    thread::sleep(SAMPLE);
                }
                highest
            })
        };
        Some(Peak { before, pids, reset, stop, sampler })
    }

    /// Waits until memory hardly changes any more, `most` at the longest, and gives it.
    pub async fn settled(&self, most: Duration) -> Option<u64> {
        const STEP: Duration = Duration::from_millis(250);
        const STEADY: usize = 12;
        let deadline = Instant::now() + most;
        let mut samples: Vec<u64> = vec![];
        loop {
            samples.push(self.memory()?);
            let last = &samples[samples.len().saturating_sub(STEADY)..];
            let (low, high) = (last.iter().min().copied()?, last.iter().max().copied()?);
            let steady = last.len() == STEADY && (high - low) * 100 <= high;
            if steady || Instant::now() >= deadline {
                return samples.last().copied();
            }
            tokio::time::sleep(STEP).await;
        }
    }
}

/// A search for the highest memory.
pub struct Peak {
    before: u64,
    pids: Vec<u32>,
    reset: bool,
    stop: Arc<AtomicBool>,
    sampler: thread::JoinHandle<u64>,
}

impl Peak {
    /// Ends the search: how much more memory there was at the peak than before, in bytes.
    pub fn end(self) -> i64 {
        self.stop.store(true, Ordering::Relaxed);
        let sampled = self.sampler.join().unwrap_or(0);
        let marked = if self.reset { total(&self.pids, "VmHWM").unwrap_or(0) } else { 0 };
        sampled.max(marked) as i64 - self.before as i64
    }
}

/// Processor time of this program so far.
pub fn own_cpu() -> Option<Duration> {
    stat(std::process::id()).map(|(_, cpu)| cpu)
}

/// How many files this program may have open.
pub fn open_files() -> Option<usize> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    limits.lines().find_map(|l| l.strip_prefix("Max open files"))?.split_whitespace().next()?.parse().ok()
}

fn total(pids: &[u32], field: &str) -> Option<u64> {
    let sizes: Vec<u64> = pids
        .iter()
        .filter_map(|pid| memory_field(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, field))
        .collect();
    (!sizes.is_empty()).then(|| sizes.iter().sum())
}

/// A field of /proc/PID/status that is in kB, in bytes.
fn memory_field(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Parent and processor time of a process.
fn stat(pid: u32) -> Option<(u32, Duration)> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Fields 4 (ppid), 14 and 15 (utime, stime) of /proc/PID/stat; the name in field 2 may hold anything.
fn parse_stat(text: &str) -> Option<(u32, Duration)> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let ticks = number(14)? + number(15)?;
    Some((u32::try_from(number(4)?).ok()?, Duration::from_millis(ticks * 1000 / TICKS)))
}

/// All processes with their parents.
fn parents() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return vec![] };
    let pids = entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, stat(pid)?.0))).collect()
}

fn descendants(root: u32, parents: &[(u32, u32)]) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        next += 1;
        for (pid, _) in parents.iter().filter(|(pid, of)| *of == parent && *pid != parent) {
            if !found.contains(pid) {
                found.push(*pid);
            }
        }
    }
    found
}

/// A server started here; ended when dropped.
pub struct Exec {
    child: Child,
    /// Where its output goes.
    pub log: PathBuf,
}

impl Exec {
    /// Starts a command line in a process group of its own, with its output in a file.
    pub fn start(command: &str) -> Result<Exec, Error> {
        let log = std::env::temp_dir().join(format!("kaji-bench-server-{}.log", std::process::id()));
        let output = fs::File::create(&log).map_err(|e| Error::file(&log, e))?;
        let errors = output.try_clone().map_err(|e| Error::file(&log, e))?;
        let words = words(command).ok_or_else(|| Error::Server("--exec holds no command".into()))?;
        let child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .map_err(|e| Error::file(Path::new(&words[0]), e))?;
        Ok(Exec { child, log })
    }

    /// The server's processes.
    pub fn server(&self) -> Server {
        Server::Tree(self.child.id())
    }

    /// The process that was started.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended by itself.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Signals the whole group; processes that have ended need no signal, so failures are of no interest.
    fn signal(&self, name: &str) {
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill").args([name, "--", &group]).stderr(Stdio::null()).status();
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        let deadline = Instant::now() + GRACE;
        self.signal("-TERM");
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        self.signal("-KILL");
        // Already dead after either signal; this collects it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command line as words: a plain one is split here, so that no shell's start is measured.
fn words(command: &str) -> Option<Vec<String>> {
    let plain = |c: char| c.is_ascii_alphanumeric() || " _-./:=,@%+".contains(c);
    match command.trim() {
        "" => None,
        text if text.chars().all(plain) => Some(text.split_whitespace().map(str::to_owned).collect()),
        text => Some(["sh", "-c", text].map(str::to_owned).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_understood() {
        let status = "Name:\tkaji\nVmHWM:\t  2048 kB\nVmRSS:\t   1024 kB\nVmRSSX: 3 kB\nThreads:\t4\n";
        assert_eq!(memory_field(status, "VmRSS"), Some(1 << 20));
        assert_eq!(memory_field(status, "VmHWM"), Some(2 << 20));
        assert_eq!(memory_field(status, "Threads"), None);
        assert_eq!(memory_field("Name:\tkworker\n", "VmRSS"), None);
        let stat = "42 (a (b) c) S 7 42 42 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 4 0 100 1 1";
        assert_eq!(parse_stat(stat), Some((7, Duration::from_secs(2))));
        assert_eq!(parse_stat("42 (a) S"), None);
    }

    #[test]
    fn trees_are_followed() {
        let parents = [(1, 0), (10, 1), (11, 10), (12, 10), (13, 11), (20, 1)];
        assert_eq!(descendants(10, &parents), [10, 11, 12, 13]);
        assert_eq!(descendants(99, &parents), [99]);
    }

    #[test]
    fn splits_command_lines() {
        assert_eq!(words("/bin/kaji up  --port 1").unwrap(), ["/bin/kaji", "up", "--port", "1"]);
        assert_eq!(words("a | b").unwrap(), ["sh", "-c", "a | b"]);
        assert_eq!(words("  "), None);
    }

    #[test]
    fn this_process_is_found() {
        let me = Server::Given(vec![std::process::id()]);
        assert!(me.memory().unwrap() > 100_000);
        assert!(me.cpu().is_some() && own_cpu().is_some());
        assert!(open_files().unwrap() > 0);
        let peak = me.watch_peak().unwrap();
        let ballast = vec![1u8; 64 << 20];
        assert!(peak.end() > 32 << 20, "{}", ballast.len());
        assert_eq!(Server::Unknown.memory(), None);
        assert_eq!(Server::Given(vec![u32::MAX]).cpu(), None);
    }

    #[test]
    fn what_is_started_is_ended() {
        let mut exec = Exec::start("sleep 1000; true").unwrap();
        let pid = exec.child.id();
        assert!(exec.ended().unwrap().is_none());
        let _ = fs::remove_file(&exec.log);
        drop(exec);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
}
