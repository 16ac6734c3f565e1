//! The phase `overhead`: what flow control and audit cost a request. The same server is started with and without them in
//! turn, and the processor time that it spends on a request is compared, so that noise of the machine counts little.

use super::{
    Error,
    client::{Call, Client, Target},
    load::{self, Each, Until},
    report::Report,
    start,
    stats::median,
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

const CLIENTS: usize = 16;
/// How often each server is started: figures are medians.
const ROUNDS: usize = 3;
const LIMIT: Duration = Duration::from_secs(120);
/// Records every request, with neither its body nor its answer.
const POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n";

/// Starts `command` with different arguments and measures it.
pub async fn run(report: &mut Report, command: &str, kubeconfig: &Path) -> Result<(), Error> {
    let dir = std::env::temp_dir().join(format!("kaji-bench-audit-{}", std::process::id()));
    std::fs::create_dir_all(&dir).map_err(|e| Error::file(&dir, e))?;
    let outcome = compared(report, command, kubeconfig, &dir).await;
    let removed = std::fs::remove_dir_all(&dir).map_err(|e| Error::file(&dir, e));
    outcome.and(removed)
}

async fn compared(report: &mut Report, command: &str, kubeconfig: &Path, dir: &Path) -> Result<(), Error> {
    let policy: PathBuf = dir.join("policy.yaml");
    std::fs::write(&policy, POLICY).map_err(|e| Error::file(&policy, e))?;
    const UNFAIR: &str = "--enable-priority-and-fairness=false";
    let audit = format!(
        "--audit-policy-file={} --audit-log-path={}",
        policy.display(),
        dir.join("audit.log").display()
    );
    let variants = [format!("{command} {UNFAIR}"), command.to_owned(), format!("{command} {UNFAIR} {audit}")];
    let count = ((60_000.0 * report.counts.scale) as usize).max(2_000);
    let mut costs: [Vec<f64>; 3] = Default::default();
    for _ in 0..ROUNDS {
        for (variant, costs) in variants.iter().zip(&mut costs) {
            costs.push(cost(variant, kubeconfig, count).await?);
        }
    }
    let [bare, fair, audited] = costs.map(|mut c| median(&mut c).unwrap_or_default());
    report.set("cost_bare", bare);
    report.set("cost_fair", fair / bare);
    report.set("cost_audit", audited / bare);
    Ok(())
}

/// Seconds of the server's processor time for one GET.
async fn cost(command: &str, kubeconfig: &Path, count: usize) -> Result<f64, Error> {
    let started = start::start(command, kubeconfig).await?;
    let target: Arc<Target> = started.target;
    let path = "/api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt";
    let mut control = Client::new(&target);
    while control.find(&Call::get(path)).await?.is_none() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let server = started.exec.server();
    let cpu = || server.cpu().ok_or_else(|| Error::Answer("the server's processor time is unknown".into()));
    let gets = || load::run(&target, CLIENTS, Until::Count(count), LIMIT, Each(move |_| Call::get(path)));
    gets().await?;
    let before = cpu()?;
    let done = gets().await?.done;
    Ok(cpu()?.saturating_sub(before).as_secs_f64() / done as f64)
}
