//! The operator's process: started, killed at a fault, started again when it ends, as a Deployment would.
//!
//! Invariants: a process group of its own, which ends with its handle; it is started again after a pause, and not without an end.

use crate::{
    layer::{FaultLayer, Signal},
    scenario::Scenario,
};
use rustix::process::{Pid, kill_process_group};
use std::{
    collections::BTreeSet,
    fs::{File, OpenOptions},
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::{
    process::Child,
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{sleep, timeout},
};

/// Before a process that ended is started again.
const PAUSE: Duration = Duration::from_millis(300);
/// For an end that was asked for.
const GRACE: Duration = Duration::from_secs(5);

enum Order {
    Restart(oneshot::Sender<()>),
    Stop(oneshot::Sender<()>),
}

/// See the module.
#[derive(Debug)]
pub struct Operator {
    orders: mpsc::Sender<Order>,
    exits: Arc<AtomicU32>,
    task: JoinHandle<()>,
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl std::fmt::Debug for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Order::Restart(_) => "restart",
            Order::Stop(_) => "stop",
        })
    }
}

/// How a process is started.
struct Program {
    command: Vec<String>,
    env: Vec<(String, String)>,
    directory: PathBuf,
    kubeconfig: PathBuf,
    log: PathBuf,
}

/// A process with its group.
struct Group(Child, Option<Pid>);

/// The groups of all operators of this process, for [`kill_all`].
static GROUPS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

fn groups() -> MutexGuard<'static, BTreeSet<i32>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills all operators of this process, which is about to end.
pub fn kill_all() {
    for group in groups().iter().filter_map(|id| Pid::from_raw(*id)) {
        // One that has ended cannot be killed, which is as well.
        let _ = kill_process_group(group, rustix::process::Signal::KILL);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(rustix::process::Signal::KILL);
        if let Some(group) = self.1 {
            groups().remove(&group.as_raw_nonzero().get());
        }
    }
}

impl Group {
    fn signal(&self, signal: rustix::process::Signal) {
        if let Some(group) = self.1 {
            // One that has ended cannot be killed, which is as well.
            let _ = kill_process_group(group, signal);
        }
    }

    async fn kill(mut self) {
        self.signal(rustix::process::Signal::KILL);
        let _ = self.0.wait().await;
    }

    async fn end(mut self) {
        self.signal(rustix::process::Signal::TERM);
        if timeout(GRACE, self.0.wait()).await.is_err() {
            self.kill().await;
        }
    }
}

impl Program {
    fn start(&self) -> io::Result<Group> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let (program, args) =
            self.command.split_first().ok_or_else(|| io::Error::other("the operator has no command"))?;
        let path = if program.contains('/') { self.directory.join(program) } else { program.into() };
        let mut command = Command::new(path);
        command
            .args(args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env("KUBECONFIG", &self.kubeconfig)
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(Stdio::from(File::try_clone(&log)?))
            .stderr(Stdio::from(log))
            .process_group(0);
        let child = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(group) = group {
            groups().insert(group.as_raw_nonzero().get());
        }
        Ok(Group(child, group))
    }
}

impl Operator {
    /// Starts it; what it prints goes to `log`.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start(
        scenario: &Scenario,
        kubeconfig: &Path,
        log: &Path,
        (layer, signals): (Arc<FaultLayer>, mpsc::Receiver<Signal>),
    ) -> io::Result<Operator> {
        let program = Program {
            command: scenario.operator.command.clone(),
            env: scenario.operator.env.clone().into_iter().collect(),
            directory: scenario.directory.clone(),
            kubeconfig: kubeconfig.to_owned(),
            log: log.to_owned(),
        };
        let process = program.start()?;
        let (orders, receiver) = mpsc::channel(4);
        let exits = Arc::new(AtomicU32::new(0));
        let most = scenario.limits.exits;
        let run = supervise(program, process, layer, (signals, receiver), (exits.clone(), most));
        Ok(Operator { orders, exits, task: tokio::spawn(run) })
    }

    /// How often it ended by itself.
    #[must_use]
    pub fn exits(&self) -> u32 {
        self.exits.load(Ordering::Relaxed)
    }

    /// Ends it as a cluster would, and starts it again.
    pub async fn restart(&self) {
        self.order(Order::Restart).await;
    }

    /// Ends it as a cluster would.
    pub async fn stop(self) {
        self.order(Order::Stop).await;
    }

    async fn order(&self, order: impl FnOnce(oneshot::Sender<()>) -> Order) {
        let (done, is_done) = oneshot::channel();
        if self.orders.send(order(done)).await.is_ok() {
            // Gone is as good as done.
            let _ = is_done.await;
        }
    }
}

async fn supervise(
    program: Program,
    process: Group,
    layer: Arc<FaultLayer>,
    (mut signals, mut orders): (mpsc::Receiver<Signal>, mpsc::Receiver<Order>),
    (exits, most): (Arc<AtomicU32>, u32),
) {
    let mut process = Some(process);
    loop {
        let exit = async {
            match &mut process {
                Some(process) => drop(process.0.wait().await),
                None => std::future::pending().await,
            }
        };
        let mut done = None;
        tokio::select! {
            biased;
            Some(order) = orders.recv() => {
                if let Some(process) = process.take() {
                    process.end().await;
                }
                match order {
                    Order::Stop(sender) => {
                        let _ = sender.send(());
                        return;
                    }
                    Order::Restart(sender) => done = Some(sender),
                }
            }
            Some(Signal::Kill) = signals.recv() => {
                if let Some(process) = process.take() {
                    process.kill().await;
                }
                layer.note("the operator is killed, and started again");
            }
            () = exit => {
                process = None;
                layer.note("the operator has ended by itself");
                if exits.fetch_add(1, Ordering::Relaxed) >= most {
                    continue;
                }
                sleep(PAUSE).await;
            }
            else => return,
        }
        layer.release_leases().await;
        match program.start() {
            Ok(started) => process = Some(started),
            Err(error) => layer.note(&format!("the operator is not started: {error}")),
        }
        if let Some(done) = done {
            let _ = done.send(());
        }
    }
}
