//! What happens to the processes of a run, to the network between them, to their disks and their clocks.
//!
//! Invariants: a seed decides the faults, and their order is written to `faults.log`; when the run is over everything runs, no rule of
//! the network holds, disks are good, and clocks are right again.

use super::{
    cluster::Cluster,
    disks::{DiskFault, DiskFaults},
    leaders::{Signal, Signals},
    network::{self, Effect, Node, Rule},
    random::Random,
};
use crate::bench::Error;
use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// How long a process may take to end after its signal.
const END: Duration = Duration::from_secs(20);
/// Long enough for another server to take a leader's lease.
const LONG: Duration = Duration::from_secs(24);
/// Seconds of a clock's step.
const STEPS: [i64; 6] = [-86_400, -300, -2, 2, 300, 86_400];
/// The same where several servers have clocks: an eviction counts for two minutes after the time that its server has stamped it with,
/// as upstream's, so that budgets do not hold over clocks that differ by more.
const STEPS_APART: [i64; 6] = [-80, -30, -2, 2, 30, 80];

/// A process of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Server(usize),
    Member(usize),
}

/// Something that goes wrong for a while.
#[derive(Clone, Debug, PartialEq)]
enum Fault {
    /// A process stops where it is, and goes on.
    Pause(Victim),
    /// A server is paused for so long that others take its leases.
    Faint(usize),
    /// A server is cut off from etcd for as long.
    Isolate(usize, Effect),
    /// A process is killed, and started again.
    Kill(Victim),
    /// All members are killed at once, as when the power fails.
    KillMembers,
    /// The disk of a member has a fault, after which the member goes on if it can, or is started again.
    MemberDisk(usize, DiskFault),
    /// The power of all members fails.
    MembersPower,
    /// A server ends with notice; it is killed if it does not.
    Terminate(usize),
    /// A server's watch of etcd breaks off, the others write, and what they have written is compacted.
    Forget(usize),
    /// Some are cut off from others. Sometimes something is killed meanwhile.
    Network(Vec<Rule>, Option<Victim>),
    /// A disk fails, and then it does not any more.
    Disk(usize, String),
    /// An fsync fails; what the system shows is not what is on disk, and the server is started again.
    Sync(usize),
    /// The power of a server fails: what was not synced is lost in part.
    Power(usize, u64),
    /// The clock of a server steps, and back later.
    Clock(usize, i64),
}

/// Makes things go wrong.
pub struct Disturber<'a> {
    cluster: &'a mut Cluster,
    etcdctl: &'a Path,
    random: Random,
    /// Servers obey orders about their disks and clocks.
    obeys: bool,
    member_disks: Option<DiskFaults>,
    log: File,
    path: PathBuf,
    signals: Signals,
    begun: Instant,
}

impl<'a> Disturber<'a> {
    /// Over the processes of a run.
    ///
    /// # Errors
    /// When the log cannot be made.
    pub fn new(
        cluster: &'a mut Cluster,
        etcdctl: &'a Path,
        random: Random,
        (obeys, member_disks): (bool, Option<DiskFaults>),
        dir: &Path,
    ) -> Result<Disturber<'a>, Error> {
        let path = dir.join("faults.log");
        let log = File::create(&path).map_err(|e| Error::file(&path, e))?;
        let (signals, begun) = (Signals::default(), Instant::now());
        Ok(Disturber { cluster, etcdctl, random, obeys, member_disks, log, path, signals, begun })
    }

    /// Makes one thing after the other go wrong. Afterwards everything runs. Answers with the signals to servers.
    ///
    /// # Errors
    /// When a process does not start again.
    pub async fn run(mut self, time: Duration) -> Result<Signals, Error> {
        while self.begun.elapsed() < time {
            let quiet = Duration::from_millis(self.random.between(300, 3000));
            sleep(quiet.min(time.saturating_sub(self.begun.elapsed()))).await;
            self.restart_ended_members()?;
            let Cluster { servers, members, .. } = &*self.cluster;
            let targets = Targets {
                servers: servers.len(),
                members: members.len(),
                obeys: self.obeys,
                member_disks: self.member_disks,
            };
            let fault = draw(&mut self.random, targets);
            writeln!(self.log, "{:8.3} {fault:?}", self.begun.elapsed().as_secs_f64())
                .map_err(|e| Error::file(&self.path, e))?;
            self.make(fault).await?;
        }
        self.restart_ended_members()?;
        for server in 0..self.cluster.servers.len() {
            self.cluster.ready(server).await?;
        }
        Ok(self.signals)
    }

    /// A member that could not write ends by itself, maybe only after its disk is good again.
    fn restart_ended_members(&mut self) -> Result<(), Error> {
        if self.cluster.disks.is_empty() {
            return Ok(());
        }
        for member in
            self.cluster.members.iter_mut().filter_map(|member| member.has_ended().then_some(member))
        {
            writeln!(
                self.log,
                "{:8.3} {} has ended by itself",
                self.begun.elapsed().as_secs_f64(),
                member.name
            )
            .map_err(|e| Error::file(&self.path, e))?;
            member.start()?;
        }
        Ok(())
    }

    async fn make(&mut self, fault: Fault) -> Result<(), Error> {
        let pause = Duration::from_millis(self.random.between(50, 6000));
        let gap = Duration::from_millis(self.random.below(1500));
        match fault {
            Fault::Pause(victim) => self.pause(victim, pause).await,
            Fault::Faint(server) => self.pause(Victim::Server(server), LONG).await,
            Fault::Isolate(server, effect) => self.isolate(server, effect).await,
            Fault::Kill(victim) => {
                self.kill(victim);
                sleep(gap).await;
                self.start_again(victim).await?;
            }
            Fault::KillMembers => {
                self.cluster.members.iter_mut().for_each(|member| member.kill());
                sleep(gap).await;
                self.cluster.members.iter_mut().try_for_each(|member| member.start())?;
            }
            Fault::MemberDisk(member, fault) => self.fail_disk(member, fault, pause).await?,
            Fault::MembersPower => {
                self.cluster.disks.iter().try_for_each(|disk| disk.begin(DiskFault::PowerLoss))?;
                self.cluster.members.iter_mut().for_each(|member| member.kill());
                sleep(gap).await;
                self.cluster.disks.iter().try_for_each(|disk| disk.end(DiskFault::PowerLoss))?;
                self.cluster.members.iter_mut().try_for_each(|member| member.start())?;
            }
            Fault::Terminate(server) => {
                self.signals.note(server, Signal::Ended);
                self.cluster.servers[server].signal("-TERM");
                self.cluster.servers[server].end(END).await;
                sleep(gap).await;
                self.start_again(Victim::Server(server)).await?;
            }
            Fault::Forget(server) => self.forget(server, pause).await?,
            Fault::Network(rules, victim) => {
                self.cluster.network.set(rules);
                sleep(pause).await;
                if let Some(victim) = victim {
                    self.kill(victim);
                    sleep(gap).await;
                    self.process(victim).start()?;
                    sleep(pause / 2).await;
                }
                self.cluster.network.set(vec![]);
            }
            Fault::Disk(server, order) => {
                // One that is still starting would end, as it should.
                self.cluster.ready(server).await?;
                self.cluster.servers[server].order(&order);
                sleep(pause).await;
                self.cluster.servers[server].order("disk good");
                self.cluster.ready(server).await?;
            }
            Fault::Sync(server) => {
                self.cluster.servers[server].order("disk sync-error");
                sleep(pause).await;
                let seed = self.random.next() >> 1;
                self.lose_power(server, seed, gap).await?;
            }
            Fault::Power(server, seed) => self.lose_power(server, seed, gap).await?,
            Fault::Clock(server, step) => {
                self.cluster.servers[server].order(&format!("clock {step}"));
                sleep(pause).await;
                self.cluster.servers[server].order(&format!("clock {}", -step));
            }
        }
        Ok(())
    }

    async fn isolate(&mut self, server: usize, effect: Effect) {
        let node = Some(Node::Server(server));
        let members = (0..self.cluster.members.len()).map(|member| Some(Node::Member(member)));
        let both = members.flat_map(|member| [(node, member), (member, node)]);
        let rules = both.map(|(from, to)| Rule { from, to, effect }).collect();
        self.cluster.network.set(rules);
        sleep(LONG).await;
        self.cluster.network.set(vec![]);
    }

    async fn forget(&mut self, server: usize, pause: Duration) -> Result<(), Error> {
        self.signal(Victim::Server(server), "-STOP");
        self.cluster.members.iter_mut().for_each(|member| member.kill());
        self.cluster.members.iter_mut().try_for_each(|member| member.start())?;
        sleep(Duration::from_secs(2) + pause).await;
        self.cluster.compact(self.etcdctl)?;
        self.signal(Victim::Server(server), "-CONT");
        Ok(())
    }

    async fn fail_disk(&mut self, member: usize, fault: DiskFault, pause: Duration) -> Result<(), Error> {
        self.cluster.disks[member].begin(fault)?;
        if fault != DiskFault::PowerLoss {
            sleep(pause).await;
        }
        let loses = matches!(fault, DiskFault::ReadOnly | DiskFault::PowerLoss);
        if loses {
            self.kill(Victim::Member(member));
        }
        self.cluster.disks[member].end(fault)?;
        if loses {
            self.cluster.members[member].start()?;
        }
        Ok(())
    }

    async fn lose_power(&mut self, server: usize, seed: u64, gap: Duration) -> Result<(), Error> {
        self.signals.note(server, Signal::Ended);
        self.cluster.servers[server].order(&format!("power-loss {seed}"));
        self.cluster.servers[server].end(END).await;
        sleep(gap).await;
        self.start_again(Victim::Server(server)).await
    }

    fn process(&mut self, victim: Victim) -> &mut super::cluster::Process {
        match victim {
            Victim::Server(server) => &mut self.cluster.servers[server],
            Victim::Member(member) => &mut self.cluster.members[member],
        }
    }

    async fn pause(&mut self, victim: Victim, time: Duration) {
        self.signal(victim, "-STOP");
        sleep(time).await;
        self.signal(victim, "-CONT");
    }

    fn signal(&mut self, victim: Victim, signal: &str) {
        self.process(victim).signal(signal);
        if let Victim::Server(server) = victim {
            let pauses = signal == "-STOP";
            self.signals.note(server, if pauses { Signal::Paused } else { Signal::Continued });
        }
    }

    fn kill(&mut self, victim: Victim) {
        if let Victim::Server(server) = victim {
            self.signals.note(server, Signal::Ended);
        }
        self.process(victim).kill();
    }

    /// Starts a process that was ended. Sometimes a server is not waited for, so that it may be killed while it starts.
    async fn start_again(&mut self, victim: Victim) -> Result<(), Error> {
        self.process(victim).start()?;
        let waits = self.random.below(4) > 0;
        match victim {
            Victim::Server(server) if waits => self.cluster.ready(server).await,
            _ => Ok(()),
        }
    }
}

/// What faults can be about.
#[derive(Clone, Copy)]
struct Targets {
    servers: usize,
    members: usize,
    /// Servers obey orders about their disks and clocks.
    obeys: bool,
    /// Members have disks that can be made to fail.
    member_disks: Option<DiskFaults>,
}

/// A fault of something that there is.
fn draw(random: &mut Random, targets: Targets) -> Fault {
    let Targets { servers, members, obeys, member_disks } = targets;
    let server = random.below(servers as u64) as usize;
    let victim = match members as u64 {
        0 => Victim::Server(server),
        count if random.below(2) == 0 => Victim::Member(random.below(count) as usize),
        _ => Victim::Server(server),
    };
    if members > 0 && servers > 1 && random.below(25) == 0 {
        return match random.below(3) {
            0 => Fault::Isolate(server, Effect::Hold),
            1 => Fault::Isolate(server, Effect::Break),
            _ => Fault::Faint(server),
        };
    }
    if let Some(kinds) = member_disks
        && members > 0
        && random.below(4) == 0
    {
        let faults = kinds.faults();
        return match random.below(8) {
            0 if kinds == DiskFaults::Losing => Fault::MembersPower,
            _ => {
                let fault = faults[random.below(faults.len() as u64) as usize];
                Fault::MemberDisk(random.below(members as u64) as usize, fault)
            }
        };
    }
    // The embedded store's disk is the server's.
    let disk = obeys && members == 0;
    match random.below(20) {
        0..=3 => Fault::Pause(victim),
        4..=6 => Fault::Kill(victim),
        7 => Fault::Terminate(server),
        8 | 9 if members > 0 => Fault::Forget(server),
        10 if members > 0 => Fault::KillMembers,
        11 | 12 if obeys => {
            let steps = if members > 0 { STEPS_APART } else { STEPS };
            Fault::Clock(server, steps[random.below(steps.len() as u64) as usize])
        }
        8..=10 if disk => Fault::Power(server, random.next() >> 1),
        13..=15 if disk => {
            let slow = format!("slow {}", random.between(5, 1500));
            let order = ["write-error", "short-write", "full", &slow][random.below(4) as usize];
            Fault::Disk(server, format!("disk {order}"))
        }
        16 if disk => Fault::Sync(server),
        _ => {
            let rules = network::draw(random, servers, members);
            let also = (random.below(3) == 0).then_some(victim);
            Fault::Network(rules, also)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn drawn(
        (servers, members): (usize, usize),
        obeys: bool,
        member_disks: Option<DiskFaults>,
    ) -> BTreeSet<String> {
        let mut random = Random::new(7, 0);
        let targets = Targets { servers, members, obeys, member_disks };
        let faults = (0..2000).map(|_| draw(&mut random, targets));
        faults
            .map(|fault| format!("{fault:?}").split(['(', ' ']).next().unwrap_or_default().to_owned())
            .collect()
    }

    #[test]
    fn each_store_has_its_faults() {
        let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(drawn((1, 0), false, None), of(&["Kill", "Network", "Pause", "Terminate"]));
        let all = ["Clock", "Disk", "Kill", "Network", "Pause", "Power", "Sync", "Terminate"];
        assert_eq!(drawn((1, 0), true, Some(DiskFaults::Losing)), of(&all));
        let mut all = of(&[
            "Clock",
            "Faint",
            "Forget",
            "Isolate",
            "Kill",
            "KillMembers",
            "Network",
            "Pause",
            "Terminate",
        ]);
        assert_eq!(drawn((2, 3), true, None), all);
        all.extend(of(&["MemberDisk"]));
        assert_eq!(drawn((2, 3), true, Some(DiskFaults::Blocking)), all);
        all.extend(of(&["MembersPower"]));
        assert_eq!(drawn((2, 3), true, Some(DiskFaults::Losing)), all);
    }
}
