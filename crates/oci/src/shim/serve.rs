//! The shim's event loop.
//!
//! Invariants: the loop waits in poll(2) only; every other operation answers at once. What poll reported is not looked at:
//! each source is tried, and says when it has nothing.

use super::build::{Building, Stdio, Target};
use super::log::LogFile;
use super::peers::{MOST_PEERS, Peer, Role};
use super::streams::{Input, Output, Sink};
use super::{announce, short_path, strays, system};
use crate::protocol::{Incoming, Received, Reply, Request};
use crate::records::{self, ExitRecord, RunRecord, ShimConfig, now_nanos};
use crate::{cgroup, user_namespaces};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::termios::{Winsize, tcsetwinsize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// How long a shim stays for clients that do not read, after its container has exited.
const LINGER: Duration = Duration::from_secs(30);

/// How a process ended of which another one is the parent, which may collect it at any time.
fn adopted_status(pid: i32, process: BorrowedFd<'_>) -> Option<i32> {
    records::uncollected_status(pid).or_else(|| system::collected_status(process))
}

enum Init {
    Building(Building, Option<UnixListener>),
    Running(RunRecord),
    /// Of another shim's making; the descriptor becomes readable at its exit.
    Adopted(RunRecord, OwnedFd),
    Exited(Instant),
}

struct Exec {
    building: Building,
    peer: u64,
    console: Option<UnixListener>,
    files: Vec<PathBuf>,
}

/// See the module.
pub struct Shim {
    bundle: PathBuf,
    directory: File,
    config: ShimConfig,
    signals: SignalFd,
    listener: UnixListener,
    peers: Vec<Peer>,
    next_peer: u64,
    init: Init,
    execs: Vec<Exec>,
    /// Exit codes of processes that ended before it was known what they are.
    early: BTreeMap<i32, i32>,
    outputs: Vec<Output>,
    input: Option<Input>,
    terminal: Option<OwnedFd>,
    log: Option<LogFile>,
    /// By which the container's processes are found if it has no cgroup.
    mounts: Option<PathBuf>,
}

impl Shim {
    fn new(bundle: &Path, config: ShimConfig, init: Init) -> io::Result<Shim> {
        let directory = File::open(bundle)?;
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let signals = SignalFd::with_flags(&mask, flags)?;
        let socket = short_path(&directory, records::SOCKET);
        match std::fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&socket)?;
        listener.set_nonblocking(true)?;
        let log = config.log_path.as_deref().map(LogFile::open).transpose()?;
        Ok(Shim {
            bundle: bundle.to_owned(),
            directory,
            config,
            signals,
            listener,
            peers: vec![],
            next_peer: 0,
            init,
            execs: vec![],
            early: BTreeMap::new(),
            outputs: vec![],
            input: None,
            terminal: None,
            log,
            mounts: None,
        })
    }

    /// Starts a container.
    ///
    /// # Errors
    /// When the bundle or the log cannot be used; the exit is on record then.
    pub fn start(bundle: &Path, config: ShimConfig) -> io::Result<Shim> {
        Shim::build(bundle, config).inspect_err(|error| {
            let message = error.to_string();
            if let Err(error) = records::write(&bundle.join(records::EXIT), &start_error(&message)) {
                tracing::error!("the exit record cannot be written: {error}");
            }
        })
    }

    fn build(bundle: &Path, config: ShimConfig) -> io::Result<Shim> {
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        mask.thread_block()?;
        let owner = (config.uid, config.gid);
        let mut outputs = vec![];
        let mut input = None;
        let (stdio, console) = if config.tty {
            let path = bundle.join("console.sock");
            let listener = UnixListener::bind(short_path(&File::open(bundle)?, "console.sock"))?;
            (Stdio::Terminal(path), Some(listener))
        } else {
            let (stdout, out) = Output::pipe(&bundle.join("stdout"), "stdout", owner)?;
            let (stderr, err) = Output::pipe(&bundle.join("stderr"), "stderr", owner)?;
            outputs = vec![stdout, stderr];
            let stdin = if config.stdin {
                let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
                rustix::fs::fchown(
                    &read,
                    Some(rustix::fs::Uid::from_raw(owner.0)),
                    Some(rustix::fs::Gid::from_raw(owner.1)),
                )?;
                input = Some(Input::new(write, config.stdin_once, false)?);
                Some(read)
            } else {
                None
            };
            (Stdio::Files([stdin, Some(out.into()), Some(err.into())]), None)
        };
        let building = Building::start(bundle, &config, Target::Init, stdio)?;
        let mut shim = Shim::new(bundle, config, Init::Building(building, console))?;
        (shim.outputs, shim.input) = (outputs, input);
        Ok(shim)
    }

    /// Takes over a container that lost its shim. Its terminal and its standard input are lost with it.
    ///
    /// # Errors
    /// When it does not run.
    pub fn adopt(bundle: &Path, config: ShimConfig) -> io::Result<Shim> {
        let gone = || io::Error::new(io::ErrorKind::NotFound, "the container does not run");
        let run: RunRecord = records::read(&bundle.join(records::RUN))?.ok_or_else(gone)?;
        let pid = rustix::process::Pid::from_raw(run.pid).ok_or_else(gone)?;
        let descriptor = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        if !run.is_alive() {
            return Err(gone());
        }
        let owner = (config.uid, config.gid);
        let mut outputs = vec![];
        if !config.tty {
            outputs.push(Output::pipe(&bundle.join("stdout"), "stdout", owner)?.0);
            outputs.push(Output::pipe(&bundle.join("stderr"), "stderr", owner)?.0);
        }
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        mask.thread_block()?;
        let mut shim = Shim::new(bundle, config, Init::Adopted(run, descriptor))?;
        shim.outputs = outputs;
        announce("");
        Ok(shim)
    }

    /// Serves until the container has exited and its clients know.
    ///
    /// # Errors
    /// Those of poll(2), and of the records.
    pub fn run(mut self) -> io::Result<()> {
        loop {
            self.advance()?;
            if let Init::Exited(at) = &self.init {
                let waiting =
                    self.peers.iter().any(Peer::has_pending) || self.outputs.iter().any(Output::has_pending);
                if !waiting || at.elapsed() > LINGER {
                    return Ok(());
                }
            }
            self.wait()?;
        }
    }

    fn wait(&self) -> io::Result<()> {
        let mut polled = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
        ];
        match &self.init {
            Init::Building(building, _) => polled.push(PollFd::new(building.as_fd(), PollFlags::POLLIN)),
            Init::Adopted(_, descriptor) => polled.push(PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)),
            Init::Running(_) | Init::Exited(_) => {}
        }
        for exec in &self.execs {
            polled.push(PollFd::new(exec.building.as_fd(), PollFlags::POLLIN));
        }
        for output in &self.outputs {
            polled.extend(output.readable().map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
            polled.extend(output.writable().map(|fd| PollFd::new(fd, PollFlags::POLLOUT)));
        }
        if let Some(input) = &self.input {
            polled.extend(input.readable().map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
            polled.extend(input.writable().map(|fd| PollFd::new(fd, PollFlags::POLLOUT)));
        }
        for peer in &self.peers {
            let write = if peer.has_pending() { PollFlags::POLLOUT } else { PollFlags::empty() };
            polled.push(PollFd::new(peer.stream(), PollFlags::POLLIN | write));
        }
        let timeout = match self.init {
            Init::Exited(_) => PollTimeout::from(1000_u16),
            _ => PollTimeout::NONE,
        };
        match poll(&mut polled, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn advance(&mut self) -> io::Result<()> {
        for output in &mut self.outputs {
            output.advance(self.log.as_mut());
        }
        // As with containerd, an attachment ends with its input, unless that ends the container's.
        if let Some(ended) = self.input.as_mut().and_then(Input::advance) {
            let attached =
                self.peers.iter_mut().filter(|peer| peer.id == ended && peer.role == Role::Attached);
            attached.for_each(|peer| peer.conclude(&Reply::Exited { code: 0 }));
            self.outputs.iter_mut().for_each(|output| output.detach(ended));
        }
        self.accept();
        self.serve_peers();
        self.advance_init()?;
        self.advance_execs();
        self.reap()
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if self.peers.len() < MOST_PEERS
                && let Ok(peer) = Peer::new(self.next_peer, stream)
            {
                self.next_peer += 1;
                self.peers.push(peer);
            }
        }
    }

    fn serve_peers(&mut self) {
        for index in 0..self.peers.len() {
            if let Some((request, descriptors)) = self.peers[index].advance() {
                self.serve(index, request, descriptors);
            }
        }
        let over: Vec<(u64, Role)> =
            self.peers.iter().filter(|peer| peer.is_over()).map(|peer| (peer.id, peer.role)).collect();
        for (id, role) in over {
            match role {
                Role::Exec(pid) if pid > 0 => kill_session(pid),
                Role::Attached => {
                    self.outputs.iter_mut().for_each(|output| output.detach(id));
                    if let Some(input) = &mut self.input {
                        input.detach(id);
                    }
                }
                _ => {}
            }
        }
        self.peers.retain(|peer| !peer.is_over());
    }

    fn serve(&mut self, index: usize, request: Request, descriptors: Vec<OwnedFd>) {
        let outcome = match request {
            Request::Wait => {
                self.peers[index].role = Role::Waiting;
                return;
            }
            Request::Exec { process, stdin, stdout, stderr } => {
                match self.exec(index, &process, [stdin, stdout, stderr], descriptors) {
                    Ok(()) => return,
                    Err(error) => Err(error),
                }
            }
            Request::Attach { stdin, stdout, stderr } => {
                match self.attach(index, [stdin, stdout, stderr], descriptors) {
                    Ok(()) => return self.peers[index].reply(&Reply::Done, None),
                    Err(error) => Err(error),
                }
            }
            Request::Resize { width, height } => self.resize(width, height),
            Request::Signal { signal } => self.signal(signal),
            Request::ReopenLog => self.log.as_mut().map_or(Ok(()), LogFile::reopen),
        };
        self.peers[index].conclude(&match outcome {
            Ok(()) => Reply::Done,
            Err(error) => Reply::Failed { message: error.to_string() },
        });
    }

    fn resize(&self, width: u16, height: u16) -> io::Result<()> {
        let size = Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
        let none = || io::Error::new(io::ErrorKind::NotFound, "the container has no terminal");
        Ok(tcsetwinsize(self.terminal.as_ref().ok_or_else(none)?, size)?)
    }

    fn signal(&self, signal: i32) -> io::Result<()> {
        let (Init::Running(run) | Init::Adopted(run, _)) = &self.init else {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the container does not run"));
        };
        // An adopted process is not this one's child, so that its id could be of another process by now.
        if !run.is_alive() {
            return Ok(());
        }
        let pid = rustix::process::Pid::from_raw(run.pid).ok_or(io::ErrorKind::NotFound)?;
        let signal = rustix::process::Signal::from_named_raw(signal)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("no signal {signal}")))?;
        match rustix::process::kill_process(pid, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn attach(&mut self, index: usize, wanted: [bool; 3], descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let peer = self.peers[index].id;
        let mut descriptors = descriptors.into_iter();
        let mut next = |wanted: bool| if wanted { descriptors.next() } else { None };
        let [stdin, stdout, stderr] = wanted.map(&mut next);
        if let Some(pipe) = stdin {
            let none =
                || io::Error::new(io::ErrorKind::NotFound, "the container's standard input is not open");
            self.input.as_mut().ok_or_else(none)?.attach(pipe, peer)?;
        }
        for (output, pipe) in self.outputs.iter_mut().zip([stdout, stderr]) {
            if let Some(pipe) = pipe {
                output.attach(Sink::new(pipe, peer)?);
            }
        }
        self.peers[index].role = Role::Attached;
        Ok(())
    }

    fn exec(
        &mut self,
        index: usize,
        process: &serde_json::Value,
        wanted: [bool; 3],
        descriptors: Vec<OwnedFd>,
    ) -> io::Result<()> {
        if !matches!(self.init, Init::Running(_) | Init::Adopted(..)) {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the container does not run"));
        }
        let peer = self.peers[index].id;
        let file = self.bundle.join(format!("exec-{peer}.json"));
        match &self.config.staging {
            None => records::write(&file, process)?,
            Some(staging) => {
                let mut process = process.clone();
                user_namespaces::map_user(&mut process, &staging.range);
                records::write(&file, &process)?;
            }
        }
        let mut files = vec![file.clone()];
        let tty = process.get("terminal").and_then(serde_json::Value::as_bool).unwrap_or(false);
        let (stdio, console) = if tty {
            let name = format!("tty-{peer}.sock");
            let listener = UnixListener::bind(short_path(&self.directory, &name))?;
            files.push(self.bundle.join(&name));
            (Stdio::Terminal(self.bundle.join(&name)), Some(listener))
        } else {
            let mut descriptors = descriptors.into_iter();
            let next = |wanted: bool| if wanted { descriptors.next() } else { None };
            (Stdio::Files(wanted.map(next)), None)
        };
        let building = Building::start(&self.bundle, &self.config, Target::Exec(file), stdio)?;
        self.peers[index].role = Role::Exec(0);
        self.execs.push(Exec { building, peer, console, files });
        Ok(())
    }

    fn advance_execs(&mut self) {
        let mut index = 0;
        while index < self.execs.len() {
            let Some(outcome) = self.execs[index].building.advance() else {
                index += 1;
                continue;
            };
            let exec = self.execs.swap_remove(index);
            for file in &exec.files {
                // Removed with the bundle at the latest.
                let _ = std::fs::remove_file(file);
            }
            let terminal = exec.console.as_ref().map(receive_terminal).transpose();
            let peer = self.peers.iter_mut().find(|peer| peer.id == exec.peer);
            match (outcome, peer, terminal) {
                (Ok(pid), Some(peer), Ok(terminal)) => {
                    if terminal.is_some() && self.config.staging.is_some() {
                        // It was made before the process entered the user namespace. The process may have ended.
                        let _ = std::os::unix::fs::chown(
                            format!("/proc/{pid}/fd/0"),
                            Some(self.config.uid),
                            None,
                        );
                    }
                    peer.role = Role::Exec(pid);
                    peer.reply(&Reply::Started { pid }, terminal);
                    if let Some(code) = self.early.remove(&pid) {
                        peer.conclude(&Reply::Exited { code });
                    }
                }
                (Ok(pid), _, _) => kill_session(pid),
                (Err(message), Some(peer), _) => peer.conclude(&Reply::Failed { message }),
                (Err(_), None, _) => {}
            }
        }
    }

    fn advance_init(&mut self) -> io::Result<()> {
        match &mut self.init {
            Init::Building(building, console) => {
                let Some(outcome) = building.advance() else { return Ok(()) };
                let console = console.take();
                match outcome {
                    Ok(pid) => self.started(pid, console),
                    Err(message) => {
                        let record = start_error(&message);
                        self.exited(record)?;
                        announce(&message);
                        Ok(())
                    }
                }
            }
            Init::Adopted(run, descriptor) if !run.is_alive() => {
                let status = adopted_status(run.pid, descriptor.as_fd());
                let run = run.clone();
                let record = match status.map(ExitStatus::from_raw) {
                    Some(status) => {
                        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
                        self.exit_record(code.unwrap_or(255), &run)
                    }
                    None => {
                        let message =
                            "the exit code was lost with the shim that the container was started by";
                        ExitRecord { message: message.to_owned(), ..self.exit_record(255, &run) }
                    }
                };
                self.exited(record)
            }
            _ => Ok(()),
        }
    }

    fn started(&mut self, pid: i32, console: Option<UnixListener>) -> io::Result<()> {
        if let Some(listener) = console {
            let master = receive_terminal(&listener)?;
            self.outputs = vec![Output::terminal(&master)?];
            if self.config.stdin {
                self.input = Some(Input::new(master.try_clone()?, self.config.stdin_once, true)?);
            }
            self.terminal = Some(master);
        }
        let start_time = records::start_time(pid).unwrap_or_default();
        let run = RunRecord { pid, start_time, started_at_nanos: now_nanos() };
        set_oom_score(pid, self.config.oom_score_adj);
        self.mounts = self.config.cgroups.is_empty().then(|| strays::mount_namespace(pid)).flatten();
        records::write(&self.bundle.join(records::RUN), &run)?;
        let early = self.early.remove(&pid);
        self.init = Init::Running(run.clone());
        if let Some(code) = early {
            let record = self.exit_record(code, &run);
            self.exited(record)?;
        }
        announce("");
        Ok(())
    }

    /// Collects the exit codes of children, and of what was orphaned below them.
    fn reap(&mut self) -> io::Result<()> {
        while let Ok(Some(_)) = self.signals.read_signal() {}
        loop {
            let (pid, code) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid.as_raw(), code),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid.as_raw(), 128 + signal as i32),
                Ok(WaitStatus::StillAlive) | Err(nix::errno::Errno::ECHILD) => return Ok(()),
                Ok(_) | Err(nix::errno::Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let building = matches!(self.init, Init::Building(..)) || !self.execs.is_empty();
            if let Init::Running(run) = &self.init
                && run.pid == pid
            {
                let run = run.clone();
                let record = self.exit_record(code, &run);
                self.exited(record)?;
            } else if let Some(peer) = self.peers.iter_mut().find(|peer| peer.role == Role::Exec(pid)) {
                peer.conclude(&Reply::Exited { code });
            } else if building {
                self.early.insert(pid, code);
            }
            if !building {
                self.early.clear();
            }
        }
    }

    fn exit_record(&self, code: i32, run: &RunRecord) -> ExitRecord {
        let killed = code == 137 && cgroup::oom_kills(&self.config.cgroups) > 0;
        let reason = match code {
            0 => "Completed",
            _ if killed => "OOMKilled",
            _ => "Error",
        };
        ExitRecord {
            exit_code: code,
            started_at_nanos: run.started_at_nanos,
            finished_at_nanos: now_nanos(),
            reason: reason.to_owned(),
            message: String::new(),
        }
    }

    /// The container has no first process any more: what is left of it is killed, its output is written, its exit recorded.
    fn exited(&mut self, record: ExitRecord) -> io::Result<()> {
        cgroup::kill_all(&self.config.cgroups);
        if let Some(namespace) = &self.mounts {
            strays::kill_in(namespace);
        }
        // After the record the manager removes what the container had: nothing may make it anew.
        strays::kill_children();
        for output in &mut self.outputs {
            output.drain(self.log.as_mut());
        }
        records::write(&self.bundle.join(records::EXIT), &record)?;
        let code = record.exit_code;
        self.init = Init::Exited(Instant::now());
        for peer in &mut self.peers {
            match peer.role {
                Role::Exec(_) => peer.conclude(&Reply::Exited { code: 137 }),
                Role::Attached | Role::Waiting => peer.conclude(&Reply::Exited { code }),
                Role::New | Role::Done => {}
            }
        }
        Ok(())
    }
}

/// How a container that could not be started is recorded, as containerd does it.
fn start_error(message: &str) -> ExitRecord {
    ExitRecord {
        exit_code: 128,
        started_at_nanos: 0,
        finished_at_nanos: now_nanos(),
        reason: "StartError".to_owned(),
        message: message.to_owned(),
    }
}

/// Kills a process that was started by an exec, with those of its session's first group.
fn kill_session(pid: i32) {
    // ESRCH: it has ended.
    let _ = kill(Pid::from_raw(-pid), Signal::SIGKILL);
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
}

/// Scores below the shim's own need CAP_SYS_RESOURCE; without it the process keeps the one that it inherited.
fn set_oom_score(pid: i32, score: i64) {
    if let Err(error) = std::fs::write(format!("/proc/{pid}/oom_score_adj"), score.to_string()) {
        tracing::debug!("the OOM score {score} cannot be set: {error}");
    }
}

/// The terminal that `libcontainer` sent before it reported that the process runs.
fn receive_terminal(listener: &UnixListener) -> io::Result<OwnedFd> {
    listener.set_nonblocking(true)?;
    let (stream, _) = listener.accept()?;
    stream.set_nonblocking(true)?;
    let none = || io::Error::new(io::ErrorKind::UnexpectedEof, "no terminal was received");
    match Incoming::default().receive_descriptor(&stream)? {
        Received::Message((), mut descriptors) => descriptors.pop().ok_or_else(none),
        Received::Partial | Received::Closed => Err(none()),
    }
}
