//! The two kinds of configuration objects, read once when they change.

use crate::rules::{Digest, Rule};
use serde_json::Value;

/// The API group of both kinds.
pub const GROUP: &str = "flowcontrol.apiserver.k8s.io";
/// Both the FlowSchema and the PriorityLevelConfiguration of privileged requests.
pub const EXEMPT: &str = "exempt";
/// Both the FlowSchema and the PriorityLevelConfiguration of what nothing else is about.
pub const CATCH_ALL: &str = "catch-all";

/// A PriorityLevelConfiguration that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SpecError(&'static str);

/// What sets the flows of a FlowSchema apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distinguisher {
    /// Nothing: it is one flow.
    None,
    /// `ByUser`
    User,
    /// `ByNamespace`
    Namespace,
}

/// The `Dangling` condition of a FlowSchema.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// `True` or `False`
    pub status: String,
    /// `Found` or `NotFound`
    pub reason: String,
    /// For people.
    pub message: String,
}

/// A FlowSchema.
#[derive(Clone, Debug)]
pub struct FlowSchema {
    /// `metadata.name`
    pub name: String,
    /// `metadata.uid`
    pub uid: String,
    /// The PriorityLevelConfiguration it names.
    pub level: String,
    /// Lower goes first.
    pub precedence: i64,
    /// What sets its flows apart.
    pub distinguisher: Distinguisher,
    /// Its present condition.
    pub dangling: Condition,
    rules: Vec<Rule>,
}

impl FlowSchema {
    /// Reads one.
    pub fn parse(object: &Value) -> FlowSchema {
        let (meta, spec) = (&object["metadata"], &object["spec"]);
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let conditions = object["status"]["conditions"].as_array();
        let dangling = conditions.into_iter().flatten().find(|c| c["type"] == "Dangling");
        FlowSchema {
            name: text(&meta["name"]),
            uid: text(&meta["uid"]),
            level: text(&spec["priorityLevelConfiguration"]["name"]),
            precedence: spec["matchingPrecedence"].as_i64().unwrap_or(1000),
            distinguisher: match spec["distinguisherMethod"]["type"].as_str() {
                Some("ByUser") => Distinguisher::User,
                Some("ByNamespace") => Distinguisher::Namespace,
                _ => Distinguisher::None,
            },
            dangling: dangling.map_or_else(Condition::default, |c| Condition {
                status: text(&c["status"]),
                reason: text(&c["reason"]),
                message: text(&c["message"]),
            }),
            rules: spec["rules"].as_array().into_iter().flatten().map(Rule::parse).collect(),
        }
    }

    /// Whether a request is one of its.
    pub fn matches(&self, digest: &Digest<'_>) -> bool {
        self.rules.iter().any(|r| r.matches(digest))
    }

    /// The text that sets the flow of a request apart from the schema's others.
    pub fn distinguish<'a>(&self, digest: &Digest<'a>) -> &'a str {
        match self.distinguisher {
            Distinguisher::None => "",
            Distinguisher::User => digest.user,
            Distinguisher::Namespace => digest.resource.map_or("", |r| r.namespace),
        }
    }

    /// What its condition should be.
    pub fn wanted_condition(&self, found: bool) -> Condition {
        let begin = "This FlowSchema references the PriorityLevelConfiguration object named";
        let (status, reason, end) = if found {
            ("False", "Found", "and it exists")
        } else {
            ("True", "NotFound", "but there is no such object")
        };
        let message = format!("{begin} {:?} {end}", self.level);
        Condition { status: status.into(), reason: reason.into(), message }
    }
}

/// How a limited level lets requests wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queuing {
    /// Queues.
    pub queues: u32,
    /// Queues each flow is dealt.
    pub hand: u32,
    /// Requests in each queue.
    pub length: u32,
}

/// A PriorityLevelConfiguration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityLevel {
    /// `metadata.name`
    pub name: String,
    /// `metadata.uid`
    pub uid: String,
    /// Whether its requests are never held back.
    pub exempt: bool,
    /// Its part of the server's seats.
    pub shares: u32,
    /// How much of its part others may use.
    pub lendable_percent: u32,
    /// How much more than its part it may use; `None` is no bound.
    pub borrowing_percent: Option<u32>,
    /// `None` when what finds no seat is turned away at once.
    pub queuing: Option<Queuing>,
}

impl PriorityLevel {
    /// Reads one.
    ///
    /// # Errors
    /// When its parts contradict each other; validation lets no such object through.
    pub fn parse(object: &Value) -> Result<PriorityLevel, SpecError> {
        let spec = &object["spec"];
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let number = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        let name = text(&object["metadata"]["name"]);
        let exempt = spec["type"] == "Exempt";
        let part = if exempt { &spec["exempt"] } else { &spec["limited"] };
        if spec["limited"].is_object() == exempt {
            return Err(SpecError("broken union structure at the top, for Limited"));
        }
        if spec["exempt"].is_object() != exempt {
            return Err(SpecError("broken union structure at the top, for Exempt"));
        }
        if (name == EXEMPT) != exempt {
            return Err(SpecError("non-alignment between name and type"));
        }
        let response = &part["limitResponse"];
        let queued = &response["queuing"];
        if !exempt && (response["type"] == "Reject") == queued.is_object() {
            return Err(SpecError("broken union structure for limit response"));
        }
        let queuing = queued.is_object().then(|| Queuing {
            queues: number(&queued["queues"]).unwrap_or(64),
            hand: number(&queued["handSize"]).unwrap_or(8),
            length: number(&queued["queueLengthLimit"]).unwrap_or(50),
        });
        if queuing.is_some_and(|q| crate::shard::Dealer::new(q.queues, q.hand).is_none()) {
            return Err(SpecError("the QueueSetConfig implies an invalid shuffle sharding config"));
        }
        Ok(PriorityLevel {
            name,
            uid: text(&object["metadata"]["uid"]),
            exempt,
            shares: number(&part["nominalConcurrencyShares"]).unwrap_or(if exempt { 0 } else { 30 }),
            lendable_percent: number(&part["lendablePercent"]).unwrap_or(0),
            borrowing_percent: number(&part["borrowingLimitPercent"]),
            queuing,
        })
    }
}
