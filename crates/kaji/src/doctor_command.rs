//! `kaji doctor`: what this machine has and lacks for clusters, and what to do about it. Exit code 1 if a cluster would not run.

use crate::default_data_dir;
use clap::{Args, ValueEnum};
use kaji_clusters::{
    ClusterDirectories,
    doctor::{self, Finding, Machine, Verdict},
};
use kaji_node::requirements;
use std::{
    error::Error,
    io::{IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
    time::SystemTime,
};

/// The ports of an API server and a kubelet.
const PORTS: [(&str, u16); 2] = [("API server's port", 6443), ("kubelet's port", 10250)];

/// Flags of `kaji doctor`.
#[derive(Args)]
pub struct Doctor {
    /// The directory of clusters.
    #[arg(long, env = "KAJI_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// The form of the answer.
    #[arg(long, short, value_name = "FORM", default_value = "text")]
    output: Form,
}

#[derive(Clone, Copy, ValueEnum)]
enum Form {
    Text,
    Json,
}

/// Looks at the machine.
pub fn doctor(args: Doctor) -> Result<ExitCode, Box<dyn Error>> {
    let home = std::env::var("HOME").ok();
    let base = std::path::absolute(args.data_dir.unwrap_or_else(|| default_data_dir(home.as_deref())))?;
    let directories = ClusterDirectories::new(base);
    let mut findings = doctor::disk(directories.base());
    findings.push(doctor::clock(directories.base(), SystemTime::now()));
    for (subject, port) in PORTS {
        findings.push(doctor::port(subject, port, owner(&directories, subject, port).as_deref()));
    }
    let machine = Machine::this(std::env::var_os("PATH").as_deref());
    findings.extend(machine.limits());
    findings.push(machine.cgroup_controllers());
    findings.extend(containers(&machine, &directories));
    let mut out = std::io::stdout().lock();
    match args.output {
        Form::Json => {
            serde_json::to_writer_pretty(&mut out, &findings)?;
            writeln!(out)?;
        }
        Form::Text => show(&mut out, &findings)?,
    }
    let is_bad = findings.iter().any(|finding| finding.verdict == Verdict::Bad);
    Ok(if is_bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The cluster of this machine that has a port.
fn owner(directories: &ClusterDirectories, subject: &str, port: u16) -> Option<String> {
    let records = directories.names().ok()?.into_iter().filter_map(|name| directories.record(&name).ok());
    let mut running = records.filter(|record| record.running().is_some());
    let is_server = subject == PORTS[0].0;
    running
        .find(|record| if is_server { record.port() == Some(port) } else { record.runs_containers })
        .map(|record| record.name.to_string())
}

/// What containers take, as root or without.
fn containers(machine: &Machine, directories: &ClusterDirectories) -> Vec<Finding> {
    const SUBJECT: &str = "containers";
    let user = rustix::process::geteuid();
    if !user.is_root() {
        let name = std::env::var("USER").unwrap_or_else(|_| user.as_raw().to_string());
        return machine.without_root(&name, user.as_raw());
    }
    let missing = requirements::Machine::default().missing(directories.base());
    if missing.is_empty() {
        let has_parser = kaji_files::apparmor_parser().is_some();
        let apparmor = doctor::confinement(kaji_files::has_apparmor("/sys".as_ref()), has_parser);
        return [Finding::good(SUBJECT, "this machine can be a node")].into_iter().chain(apparmor).collect();
    }
    let advice = "mend this, or leave it: nodes are simulated then, and no container runs";
    missing.into_iter().map(|reason| Finding::warning(SUBJECT, reason, advice)).collect()
}

fn show(out: &mut impl Write, findings: &[Finding]) -> std::io::Result<()> {
    let is_terminal = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    for finding in findings {
        let (mark, color) = match finding.verdict {
            Verdict::Good => ("ok  ", 32),
            Verdict::Warning => ("warn", 33),
            Verdict::Bad => ("BAD ", 31),
        };
        let mark = if is_terminal { format!("\x1b[{color}m{mark}\x1b[0m") } else { mark.to_owned() };
        writeln!(out, "{mark}  {:<24}  {}", finding.subject, finding.text)?;
        if let Some(advice) = &finding.advice {
            writeln!(out, "{:32}-> {advice}", "")?;
        }
    }
    Ok(())
}
