//! The phase `start`: from running a command line to the first 200 of /readyz.
//!
//! Invariants: the clock starts before the process is made; nothing may answer at the address before; the kubeconfig may
//! appear, or change, while the server starts, as servers write it.

use super::{
    Error,
    client::{Call, Client, Target},
    kubeconfig,
    process::Exec,
};
use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

/// How long a server may take to start.
const LIMIT: Duration = Duration::from_secs(180);
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(1);

/// A server that was started and is ready.
pub struct Started {
    /// Its process; dropping it ends the server.
    pub exec: Exec,
    /// How to speak to it.
    pub target: Arc<Target>,
    /// From exec to ready.
    pub took: Duration,
}

/// Starts the server and waits until it is ready.
pub async fn start(command: &str, kubeconfig: &Path) -> Result<Started, Error> {
    if let Ok(target) = kubeconfig::load(kubeconfig) {
        let connected = timeout(Duration::from_secs(2), TcpStream::connect(&target.address)).await;
        if matches!(connected, Ok(Ok(_))) {
            return Err(Error::Server(format!("something answers at {} already", target.address)));
        }
    }
    let began = Instant::now();
    let mut exec = Exec::start(command)?;
    let mut seen: Option<(SystemTime, u64)> = None;
    let mut client: Option<Client> = None;
    let mut last = format!("{} was not written", kubeconfig.display());
    let ready = Call::get("/readyz");
    while began.elapsed() < LIMIT {
        if let Some(status) = exec.ended().map_err(|e| Error::Server(e.to_string()))? {
            return Err(Error::Server(format!("{status} before it was ready; see {}", exec.log.display())));
        }
        let stamp = fs::metadata(kubeconfig).ok().and_then(|m| Some((m.modified().ok()?, m.len())));
        if stamp != seen && stamp.is_some() {
            match kubeconfig::load(kubeconfig) {
                Ok(target) => {
                    client = Some(Client::new(&Arc::new(target)).limited(Duration::from_secs(2)));
                    seen = stamp;
                }
                // Perhaps half written.
                Err(error) => last = error.to_string(),
            }
        }
        if let Some(client) = &mut client {
            match client.call(&ready).await {
                Ok(_) => {
                    let took = began.elapsed();
                    return Ok(Started { exec, target: client.target().clone(), took });
                }
                Err(error) => last = error.to_string(),
            }
        }
        sleep(PAUSE).await;
    }
    Err(Error::Server(format!("not ready after {} s: {last}; see {}", LIMIT.as_secs(), exec.log.display())))
}
