//! Quotas: one that is used up, and what one has refused.

use crate::{
    case::Case,
    paths,
    reader::Reader,
    report::{Cause, Sort},
};
use kaji_meta::{
    object::{self, obj_at, str_at},
    quantity::Quantity,
};
use serde_json::Value;

/// Which amounts of the quota are used up.
pub async fn causes(case: &Case<'_>) -> Vec<Cause> {
    exhausted(case.object)
        .into_iter()
        .map(|text| {
            Cause::new(Sort::Quota, "nothing more is admitted")
                .known(text)
                .fix("delete what is not needed, or raise spec.hard")
        })
        .collect()
}

/// A write that a quota has refused, by the text of the answer.
/// Source: apiserver's admission plugin `resourcequota`.
pub struct QuotaRefusal<'a> {
    name: &'a str,
    /// The amounts that do not fit; empty: the object does not say how much it needs of what is limited.
    exceeded: Vec<&'a str>,
}

impl<'a> QuotaRefusal<'a> {
    /// `exceeded quota: NAME, requested: …, used: …, limited: AMOUNT=…,AMOUNT=…` or `failed quota: NAME: must specify …`.
    pub fn of(message: &'a str) -> Option<QuotaRefusal<'a>> {
        if let Some((_, rest)) = message.split_once("exceeded quota: ") {
            let (name, rest) = rest.split_once(", requested: ")?;
            let (_, limited) = rest.split_once(", limited: ")?;
            let amounts = limited.split(',').filter_map(|amount| amount.split_once('='));
            return Some(QuotaRefusal { name, exceeded: amounts.map(|(amount, _)| amount).collect() });
        }
        let (_, rest) = message.split_once("failed quota: ")?;
        let (name, _) = rest.split_once(": must specify ")?;
        Some(QuotaRefusal { name, exceeded: vec![] })
    }

    /// Adds what the quota says of these amounts now, and what helps.
    pub async fn explained(&self, reader: &Reader<'_>, namespace: &str, mut cause: Cause) -> Cause {
        if self.exceeded.is_empty() {
            return cause.fix(
                "give its containers the requests and limits that are named, or create a LimitRange with defaults",
            );
        }
        if let Some(quotas) = reader.list(&paths::path("v1", namespace, "resourcequotas", "")).await {
            match quotas.iter().find(|quota| object::name(quota) == self.name) {
                None => {
                    let gone = format!("there is no ResourceQuota {} any more", self.name);
                    return cause.known(gone).fix("try again; a controller does so by itself");
                }
                Some(quota) => {
                    for (name, used, hard) in amounts(quota).filter(|(name, ..)| self.exceeded.contains(name))
                    {
                        cause =
                            cause.known(format!("ResourceQuota {}: {}", self.name, usage(name, used, hard)));
                    }
                }
            }
        }
        cause.fix("delete what is not needed, lower the requests, or raise the quota")
    }
}

/// Name, use and limit of each amount of a quota.
fn amounts(quota: &Value) -> impl Iterator<Item = (&str, &str, &str)> {
    let hard = obj_at(quota, &["status", "hard"]).or_else(|| obj_at(quota, &["spec", "hard"]));
    hard.into_iter().flatten().filter_map(|(name, hard)| {
        Some((name.as_str(), str_at(quota, &["status", "used", name]), hard.as_str()?))
    })
}

/// `pods: used 10 of 10`
fn usage(name: &str, used: &str, hard: &str) -> String {
    format!("{name}: used {used} of {hard}")
}

/// What is used up.
fn exhausted(quota: &Value) -> Vec<String> {
    let full = |used: &str, hard: &str| Some(Quantity::parse(used).ok()? >= Quantity::parse(hard).ok()?);
    let amounts = amounts(quota).filter(|(_, used, hard)| full(used, hard) == Some(true));
    amounts.map(|(name, used, hard)| usage(name, used, hard)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_quotas_refuse() {
        let read =
            |message| QuotaRefusal::of(message).map(|r| format!("{} {}", r.name, r.exceeded.join(" ")));
        let exceeded = "pods \"a\" is forbidden: exceeded quota: q, requested: cpu=2,pods=1, used: cpu=3,pods=2, limited: cpu=4,pods=2";
        assert_eq!(read(exceeded).as_deref(), Some("q cpu pods"));
        let failed =
            "pods \"a\" is forbidden: failed quota: q: must specify cpu for: a,b; limits.memory for: c";
        assert_eq!(read(failed).as_deref(), Some("q "));
        for other in ["", "exceeded quota: q", "failed quota: q", "failed quota: "] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
