//! Durable creates per second of the embedded store: 64 tasks, each creating keys with 1 KB values one after another.
//!
//! `cargo run --release -p kaji-store --example throughput [-- WRITES [DIRECTORY]]`
#![allow(clippy::print_stdout)]

use kaji_store::disk::{DiskOptions, DiskStore};
use kaji_store::{Store, StoreError, Txn, TxnOutcome};
use std::sync::Arc;
use std::time::{Duration, Instant};

const TASKS: usize = 64;
const WATCHES: usize = 50;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let writes: usize = args.next().map_or(Ok(200_000), |n| n.parse())?;
    let temp = tempfile::tempdir()?;
    let path = args.next().map_or_else(|| temp.path().to_owned(), Into::into);
    let started = Instant::now();
    let store: Arc<dyn Store> = Arc::new(DiskStore::open(&path, DiskOptions::default())?);
    println!("open: {:?}, resident: {} KiB", started.elapsed(), resident());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let base = runtime.block_on(store.revision())?;
    runtime.block_on(async {
        report("create", writes, || run(&store, writes, base, false)).await?;
        report("update", writes, || run(&store, writes, base, true)).await?;
        for i in 0..WATCHES {
            let mut watch = store.watch(&format!("/watched/{i}/"), 0).await?;
            tokio::spawn(async move {
                while let Some(Ok(_)) = futures_util::StreamExt::next(&mut watch).await {}
            });
        }
        report("create with watches", writes, || run(&store, writes, base + 1, false)).await
    })?;
    drop(store);
    let started = Instant::now();
    let store = DiskStore::open(&path, DiskOptions::default())?;
    println!("reopen with {} changes: {:?}, resident: {} KiB", writes * 3, started.elapsed(), resident());
    drop(store);
    Ok(())
}

async fn report<F>(what: &str, writes: usize, run: impl FnOnce() -> F) -> Result<(), StoreError>
where
    F: Future<Output = Result<(), StoreError>>,
{
    let (started, cpu) = (Instant::now(), cpu_time());
    run().await?;
    let elapsed = started.elapsed();
    let cpu = cpu_time().saturating_sub(cpu);
    println!(
        "{what}: {writes} writes in {elapsed:.2?}: {:.0}/s, {:.1} us of CPU each, resident: {} KiB",
        writes as f64 / elapsed.as_secs_f64(),
        cpu.as_micros() as f64 / writes as f64,
        resident(),
    );
    Ok(())
}

async fn run(store: &Arc<dyn Store>, writes: usize, base: u64, update: bool) -> Result<(), StoreError> {
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let store = store.clone();
        tasks.push(tokio::spawn(async move {
            for n in 0..writes / TASKS {
                let (key, value) = (format!("/registry/pods/{base}/{task}/{n}"), vec![b'x'; 1024]);
                let txn = if update { Txn::put(key, value) } else { Txn::create(key, value) };
                if let TxnOutcome::Conflict { .. } = store.txn(txn).await? {
                    return Err(StoreError::Invalid("the directory was used before".into()));
                }
            }
            Ok(())
        }));
    }
    for task in tasks {
        task.await.map_err(|e| StoreError::Unavailable(e.to_string()))??;
    }
    Ok(())
}

/// CPU time of this process, where there is /proc; in ticks of 10 ms.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|f| f.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
}
