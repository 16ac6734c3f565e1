//! The network of a run: a proxy of its own for each way from a client to a server, from a server to a member of etcd, and to each
//! member from the others. Faults are rules about pairs of them.
//!
//! Invariants: bytes arrive in order and once, or their connection ends, as TCP has it; a rule holds for what is on its way already
//! and not yet delivered; without rules nothing is delayed.
//!
//! Connections between members of etcd all lead to the proxy of their target. The source is read from the head of the first request,
//! where etcd names it; what names none (questions after a version) passes.

use super::random::Random;
use crate::bench::Error;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::sleep,
};

/// Bytes that are read at once.
const PIECE: usize = 16 << 10;
/// The longest that a piece is held by a delay.
const MOST_DELAY: u64 = 400;
/// The header with the id of the member that a request comes from.
const SOURCE: &str = "x-server-from: ";

/// What can be cut off from what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// All clients of the API.
    Clients,
    /// An API server.
    Server(usize),
    /// A member of etcd.
    Member(usize),
}

/// What happens to bytes on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// They wait until the rule ends: a network that drops packets.
    Hold,
    /// They arrive late.
    Delay(Duration),
    /// The connection breaks, and so do new ones.
    Break,
}

/// An effect on what one side sends to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The sender; all if `None`.
    pub from: Option<Node>,
    /// The receiver; all if `None`.
    pub to: Option<Node>,
    /// What happens.
    pub effect: Effect,
}

impl Rule {
    fn applies(&self, from: Option<Node>, to: Node) -> bool {
        // What is not known to come from somewhere is in no rule about a source.
        self.from.is_none_or(|node| Some(node) == from) && self.to.is_none_or(|node| node == to)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |node: Option<Node>| node.map_or("all".to_owned(), |node| format!("{node:?}"));
        write!(f, "{} -> {}: {:?}", name(self.from), name(self.to), self.effect)
    }
}

/// The first of the rules that apply decides.
fn effect(rules: &[Rule], from: Option<Node>, to: Option<Node>) -> Option<Effect> {
    let to = to?;
    rules.iter().find(|rule| rule.applies(from, to)).map(|rule| rule.effect)
}

/// The ids of members, in hexadecimal, as requests name them.
type Ids = Arc<Mutex<BTreeMap<String, usize>>>;

/// All proxies. They end with this.
pub struct Network {
    rules: watch::Sender<Vec<Rule>>,
    ids: Ids,
    proxies: JoinSet<()>,
}

impl Network {
    /// A network without proxies and rules.
    pub fn new() -> Network {
        Network { rules: watch::channel(vec![]).0, ids: Ids::default(), proxies: JoinSet::new() }
    }

    /// A proxy that leads to `target`, at `port` of the loopback. Without `from`, the source is looked for in what is sent.
    ///
    /// # Errors
    /// When the port is taken.
    pub async fn proxy(
        &mut self,
        port: u16,
        (from, to): (Option<Node>, Node),
        target: u16,
    ) -> Result<(), Error> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await;
        let listener = listener.map_err(|e| Error::Server(format!("the proxy at port {port}: {e}")))?;
        let (rules, ids) = (self.rules.subscribe(), self.ids.clone());
        self.proxies.spawn(async move {
            let mut links = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((client, _)) => {
                            let link = Link { from, to, rules: rules.clone(), ids: ids.clone() };
                            links.spawn(link.run(client, target));
                        }
                        // Out of file descriptors, mostly.
                        Err(_) => sleep(Duration::from_millis(50)).await,
                    },
                    // Those that have ended.
                    Some(_) = links.join_next() => {}
                }
            }
        });
        Ok(())
    }

    /// Says which member has which id.
    pub fn name_member(&self, id: &str, member: usize) {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned(), member);
    }

    /// From now on these rules hold, and no others.
    pub fn set(&self, rules: Vec<Rule>) {
        self.rules.send_replace(rules);
    }
}

/// One connection through a proxy.
struct Link {
    from: Option<Node>,
    to: Node,
    rules: watch::Receiver<Vec<Rule>>,
    ids: Ids,
}

impl Link {
    async fn run(mut self, mut client: TcpStream, target: u16) {
        let mut first = vec![];
        if self.from.is_none() {
            first = vec![0; PIECE];
            let Ok(read) = client.read(&mut first).await else { return };
            first.truncate(read);
            self.from = source(&first, &self.ids.lock().unwrap_or_else(PoisonError::into_inner));
        }
        let (from, to) = (self.from, Some(self.to));
        // A connection through a network that drops packets is made when it does not any more.
        if !settled(&mut self.rules, from, to).await || !settled(&mut self.rules, to, from).await {
            return;
        }
        let Ok(mut server) = TcpStream::connect(("127.0.0.1", target)).await else { return };
        // Without it small answers are late; that is all.
        let _late = (client.set_nodelay(true), server.set_nodelay(true));
        if server.write_all(&first).await.is_err() {
            return;
        }
        let (back_rules, there_rules) = (self.rules.clone(), self.rules);
        let ((client_in, client_out), (server_in, server_out)) = (client.split(), server.split());
        // Each ends with its own side; a rule that breaks ends both.
        let there = pass(client_in, server_out, there_rules, (from, to));
        let back = pass(server_in, client_out, back_rules, (to, from));
        let _broken = tokio::try_join!(there, back);
    }
}

/// The member that sent the first bytes of a connection.
fn source(first: &[u8], ids: &BTreeMap<String, usize>) -> Option<Node> {
    let text = String::from_utf8_lossy(first).to_ascii_lowercase();
    let (_, rest) = text.split_once(SOURCE)?;
    let id = rest.split(|c: char| !c.is_ascii_hexdigit()).next()?;
    ids.get(id).copied().map(Node::Member)
}

/// Waits until nothing holds bytes between two nodes. False when their connection is to break.
async fn settled(rules: &mut watch::Receiver<Vec<Rule>>, from: Option<Node>, to: Option<Node>) -> bool {
    loop {
        let now = effect(&rules.borrow_and_update(), from, to);
        match now {
            None => return true,
            Some(Effect::Break) => return false,
            Some(Effect::Delay(time)) => {
                sleep(time).await;
                return true;
            }
            Some(Effect::Hold) => {
                if rules.changed().await.is_err() {
                    return false;
                }
            }
        }
    }
}

/// The connection is to end.
struct Broken;

/// Passes on what one side sends, and its end.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut rules: watch::Receiver<Vec<Rule>>,
    (source, target): (Option<Node>, Option<Node>),
) -> Result<(), Broken> {
    let mut piece = vec![0; PIECE];
    loop {
        let read = tokio::select! {
            read = from.read(&mut piece) => read.map_err(|_| Broken)?,
            changed = rules.changed() => {
                let breaks = effect(&rules.borrow_and_update(), source, target) == Some(Effect::Break);
                if changed.is_err() || breaks {
                    return Err(Broken);
                }
                continue;
            }
        };
        if !settled(&mut rules, source, target).await {
            return Err(Broken);
        }
        if read == 0 {
            return to.shutdown().await.map_err(|_| Broken);
        }
        to.write_all(&piece[..read]).await.map_err(|_| Broken)?;
    }
}

/// A fault between the nodes that there are.
pub fn draw(random: &mut Random, servers: usize, members: usize) -> Vec<Rule> {
    let effect = match random.below(6) {
        0..=2 => Effect::Hold,
        3 | 4 => Effect::Break,
        _ => Effect::Delay(Duration::from_millis(random.between(20, MOST_DELAY))),
    };
    let server = Node::Server(random.below(servers.max(1) as u64) as usize);
    let rule = |from, to| Rule { from, to, effect };
    let both = |one: Node, other: Option<Node>| vec![rule(Some(one), other), rule(other, Some(one))];
    if members == 0 || random.below(4) == 0 {
        // Between clients and a server; sometimes in one direction alone.
        return match random.below(3) {
            0 => vec![rule(Some(Node::Clients), Some(server))],
            1 => vec![rule(Some(server), Some(Node::Clients))],
            _ => both(Node::Clients, Some(server)),
        };
    }
    let member = random.below(members as u64) as usize;
    let others = (0..members).filter(|other| *other != member).map(Node::Member);
    match random.below(6) {
        // A member and the others.
        0 | 1 => others.flat_map(|other| both(Node::Member(member), Some(other))).collect(),
        // What a member sends to the others, or what they send to it.
        2 => others.map(|other| rule(Some(Node::Member(member)), Some(other))).collect(),
        3 => others.map(|other| rule(Some(other), Some(Node::Member(member)))).collect(),
        // A member and everything.
        4 => both(Node::Member(member), None),
        // A server and all members.
        _ => (0..members).flat_map(|member| both(server, Some(Node::Member(member)))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    fn free() -> u16 {
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    /// A server that sends back what it gets, behind a proxy.
    async fn echo(network: &mut Network, from: Option<Node>, to: Node) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (target, port) = (listener.local_addr().unwrap().port(), free());
        network.proxy(port, (from, to), target).await.unwrap();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    tokio::io::copy(&mut read, &mut write).await
                });
            }
        });
        port
    }

    async fn ask(stream: &mut TcpStream, text: &str) -> Option<String> {
        stream.write_all(text.as_bytes()).await.ok()?;
        let mut answer = vec![0; text.len()];
        stream.read_exact(&mut answer).await.ok()?;
        String::from_utf8(answer).ok()
    }

    #[tokio::test]
    async fn bytes_are_held_in_one_direction_and_arrive_in_order() {
        let mut network = Network::new();
        let port = echo(&mut network, Some(Node::Clients), Node::Server(0)).await;
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        assert_eq!(ask(&mut stream, "one").await.as_deref(), Some("one"));
        let hold = |from, to| Rule { from: Some(from), to: Some(to), effect: Effect::Hold };
        network.set(vec![hold(Node::Clients, Node::Server(1))]);
        assert_eq!(ask(&mut stream, "two").await.as_deref(), Some("two"));
        for rule in [hold(Node::Clients, Node::Server(0)), hold(Node::Server(0), Node::Clients)] {
            network.set(vec![rule]);
            let held = timeout(Duration::from_millis(100), ask(&mut stream, "held")).await;
            assert!(held.is_err(), "{held:?}");
            network.set(vec![]);
            let mut answer = [0; 4];
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"held");
        }
    }

    #[tokio::test]
    async fn connections_break_and_new_ones_do_while_the_rule_holds() {
        let mut network = Network::new();
        let port = echo(&mut network, Some(Node::Clients), Node::Server(0)).await;
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        assert_eq!(ask(&mut stream, "one").await.as_deref(), Some("one"));
        network.set(vec![Rule { from: None, to: Some(Node::Server(0)), effect: Effect::Break }]);
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0);
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        assert_eq!(ask(&mut stream, "two").await, None);
        network.set(vec![]);
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        assert_eq!(ask(&mut stream, "three").await.as_deref(), Some("three"));
    }

    #[tokio::test]
    async fn members_are_told_apart_by_what_they_send() {
        let mut network = Network::new();
        network.name_member("8e9e05c52164694d", 2);
        let port = echo(&mut network, None, Node::Member(0)).await;
        network.set(vec![Rule {
            from: Some(Node::Member(2)),
            to: Some(Node::Member(0)),
            effect: Effect::Break,
        }]);
        let head = |id: &str| format!("GET /raft/stream HTTP/1.1\r\nX-Server-From: {id}\r\n\r\n");
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        assert_eq!(ask(&mut stream, &head("8e9e05c52164694d")).await, None);
        for passes in [head("1e9e05c52164694d"), "GET /version HTTP/1.1\r\n\r\n".to_owned()] {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            assert_eq!(ask(&mut stream, &passes).await, Some(passes));
        }
    }

    #[test]
    fn faults_are_about_nodes_that_there_are() {
        for seed in 0..500 {
            let rules = draw(&mut Random::new(seed, 0), 2, 3);
            assert!(!rules.is_empty());
            let nodes = rules.iter().flat_map(|rule| [rule.from, rule.to]).flatten();
            assert!(nodes.into_iter().all(|node| match node {
                Node::Clients => true,
                Node::Server(server) => server < 2,
                Node::Member(member) => member < 3,
            }));
            let alone = draw(&mut Random::new(seed, 0), 1, 0);
            assert!(alone.iter().all(|rule| !matches!(rule.from, Some(Node::Member(_)))), "{alone:?}");
        }
    }
}
