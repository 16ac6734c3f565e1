//! Moves bytes between a client's streams and a process, and says at the end how it ended.
//!
//! Invariant: a command without a terminal outlives its client, as with upstream's runtimes: it gets what the client had written and
//! then the end of its input, and what it prints is dropped. Of such there are never more than [`MAX_DETACHED`]: one more is killed. A
//! terminal hangs up with its client.

use super::{resize, status::StatusFormat};
use crate::transport::{Gone, Incoming, Message, Outgoing};
use futures_util::future;
use kaji_containers::{Exit, Reader, RuntimeError, Session, Writer};
use std::sync::{Arc, OnceLock};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    task::JoinHandle,
};

/// Commands without their clients, in this process: each has pipes and a task.
const MAX_DETACHED: usize = 256;
static DETACHED: Semaphore = Semaphore::const_new(MAX_DETACHED);

/// The client's streams, whatever carries them.
pub(super) struct Streams {
    pub(super) stdin: Option<Incoming>,
    pub(super) resize: Option<Incoming>,
    pub(super) stdout: Option<u32>,
    pub(super) stderr: Option<u32>,
    /// Takes the status.
    pub(super) error: Option<u32>,
    /// Whether the process goes on when the client is gone.
    pub(super) outlives_client: bool,
    pub(super) outgoing: Outgoing,
}

/// Runs a session to its end, and sends its status.
pub(super) async fn serve(
    streams: Streams,
    open: impl Future<Output = Result<Session, RuntimeError>> + Send + 'static,
    format: StatusFormat,
) -> Result<(), Gone> {
    if !streams.outlives_client {
        return run(streams, open, format).await;
    }
    // A client may be gone, with all that it had to say said, before the process is there.
    let mut command = Command::spawn(run(streams, open, format), &DETACHED);
    (&mut command.task).await.unwrap_or_else(|error| {
        tracing::error!(%error, "streaming: the task of a command failed");
        Err(Gone)
    })
}

/// A command's task. When this is dropped, it goes on if there is a permit for it, and else is aborted, by which its session is
/// dropped.
struct Command {
    task: JoinHandle<Result<(), Gone>>,
    detached: &'static Semaphore,
    /// Shared with the task, so that the permit is returned when that ends.
    permit: Arc<OnceLock<SemaphorePermit<'static>>>,
}

impl Command {
    fn spawn(
        run: impl Future<Output = Result<(), Gone>> + Send + 'static,
        detached: &'static Semaphore,
    ) -> Command {
        let permit = Arc::new(OnceLock::new());
        let held = permit.clone();
        let task = tokio::spawn(async move {
            let _held = held;
            run.await
        });
        Command { task, detached, permit }
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        if self.task.is_finished() {
            return;
        }
        match self.detached.try_acquire() {
            Ok(permit) => drop(self.permit.set(permit)),
            Err(_) => {
                tracing::warn!("streaming: a command is killed: too many go on without their clients");
                self.task.abort();
            }
        }
    }
}

async fn run(
    streams: Streams,
    open: impl Future<Output = Result<Session, RuntimeError>> + Send,
    format: StatusFormat,
) -> Result<(), Gone> {
    let (error, outgoing) = (streams.error, streams.outgoing.clone());
    let outcome = match open.await {
        Ok(session) => transfer(streams, session).await?,
        Err(error) => Err(error),
    };
    let Some(error) = error else { return Ok(()) };
    if let Some(text) = format.text(&outcome) {
        outgoing.data(error, text).await?;
    }
    outgoing.send(Message::Finish { stream: error }).await
}

async fn transfer(streams: Streams, session: Session) -> Result<Result<Exit, RuntimeError>, Gone> {
    let Streams { stdin, resize, stdout, stderr, outgoing, outlives_client, .. } = streams;
    let inputs = future::join(input(stdin, session.stdin), resize::forward(resize, session.resize));
    let done = async {
        let (stdout, stderr, exit) = tokio::join!(
            output(&outgoing, session.stdout, stdout, outlives_client),
            output(&outgoing, session.stderr, stderr, outlives_client),
            session.exit
        );
        stdout.and(stderr).map(|()| exit)
    };
    let mut done = std::pin::pin!(done);
    tokio::select! {
        outcome = &mut done => outcome,
        _ = inputs => done.await,
    }
}

/// Copies what a process prints, to the end; without a client, to nowhere.
async fn output(
    outgoing: &Outgoing,
    from: Option<Reader>,
    stream: Option<u32>,
    outlives_client: bool,
) -> Result<(), Gone> {
    let Some(stream) = stream else { return Ok(()) };
    if let Some(mut from) = from {
        let copied = outgoing.copy(stream, &mut from).await;
        if copied.is_err()
            && outlives_client
            && let Err(error) = tokio::io::copy(&mut from, &mut tokio::io::sink()).await
        {
            tracing::debug!(%error, "streaming: a process's output ended");
        }
        copied?;
    }
    outgoing.send(Message::Finish { stream }).await
}

/// Copies what a client writes. When the process does not read any more, the rest is dropped.
async fn input(from: Option<Incoming>, to: Option<Writer>) {
    let Some(mut from) = from else { return };
    if let Some(to) = to
        && let Err(error) = from.copy(to).await
    {
        tracing::debug!(%error, "streaming: a process's input was closed");
    }
    from.drain().await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    static ONE: Semaphore = Semaphore::const_new(1);

    /// A command that ends when the sender says so; the receiver fails if it was killed.
    fn command() -> (Command, oneshot::Sender<()>, oneshot::Receiver<()>) {
        let ((finish, finished), (ended, end)) = (oneshot::channel(), oneshot::channel());
        let run = async move {
            finished.await.map_err(|_| Gone)?;
            ended.send(()).map_err(|()| Gone)
        };
        (Command::spawn(run, &ONE), finish, end)
    }

    #[tokio::test]
    async fn commands_without_clients_are_bounded() {
        let (first, finish_first, first_ends) = command();
        let (second, _finish_second, second_ends) = command();
        drop(first);
        assert_eq!(ONE.available_permits(), 0);
        drop(second);
        assert!(second_ends.await.is_err());
        finish_first.send(()).unwrap();
        first_ends.await.unwrap();
        drop(ONE.acquire().await.unwrap());
        // One that ends while it has a client takes no permit.
        let (mut third, finish_third, third_ends) = command();
        finish_third.send(()).unwrap();
        (&mut third.task).await.unwrap().unwrap();
        third_ends.await.unwrap();
        drop(third);
        assert_eq!(ONE.available_permits(), 1);
        let (fourth, finish_fourth, fourth_ends) = command();
        drop(fourth);
        finish_fourth.send(()).unwrap();
        fourth_ends.await.unwrap();
    }
}
