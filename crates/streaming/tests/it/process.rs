//! Processes that are functions.

use kaji_containers::{Exit, RuntimeError, Session, TerminalSize};
use kaji_streaming::StreamOptions;
use tokio::{
    io::DuplexStream,
    sync::{mpsc, oneshot},
    task::AbortHandle,
};

/// The process's ends of its streams.
pub struct Process {
    pub stdin: DuplexStream,
    pub stdout: DuplexStream,
    pub stderr: DuplexStream,
    pub resize: mpsc::Receiver<TerminalSize>,
}

struct Kill(AbortHandle);

impl Drop for Kill {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts a process. It is killed when its session is dropped.
pub fn start<F>(options: StreamOptions, main: impl FnOnce(Process) -> F) -> Session
where
    F: Future<Output = i32> + Send + 'static,
{
    let pipe = || tokio::io::duplex(1024);
    let ((stdin, in_far), (stdout, out_far), (stderr, err_far)) = (pipe(), pipe(), pipe());
    let (resize, sizes) = mpsc::channel(1);
    let process = Process { stdin: in_far, stdout: out_far, stderr: err_far, resize: sizes };
    let (exited, exit) = oneshot::channel();
    let main = main(process);
    let task = tokio::spawn(async move {
        let code = main.await;
        let _ = exited.send(code);
    });
    let kill = Kill(task.abort_handle());
    Session {
        stdin: options.stdin.then(|| Box::new(stdin) as _),
        stdout: options.stdout.then(|| Box::new(stdout) as _),
        stderr: options.stderr.then(|| Box::new(stderr) as _),
        resize: options.tty.then_some(resize),
        exit: Box::pin(async move {
            let _kill = kill;
            exit.await.map(|code| Exit { code }).map_err(|_| RuntimeError::Internal("killed".into()))
        }),
    }
}

/// Two ends of a connection.
pub fn socket() -> (DuplexStream, DuplexStream) {
    tokio::io::duplex(1024)
}
