//! Conversions by somebody else that field management needs: managers are known by the versions that they wrote in.
//!
//! Field management is pure and does not wait. So whoever calls it asks here for the conversions, and is told of those
//! that are missing by a failure; they are fetched, and everything is computed once more.
//!
//! Invariants: an outcome is used only when nothing was missing; each round brings an answer (or an error) that was not
//! there before, so rounds end.

use super::{
    Op, State,
    update::{Made, Make},
};
use kaji_meta::Status;
use serde_json::Value;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Rounds of one computation. Each version that managers know costs a few.
const MAX_ROUNDS: usize = 64;

/// Conversions asked for in one write.
#[derive(Default)]
pub(crate) struct Conversions(Mutex<Known>);

#[derive(Default)]
struct Known {
    answers: Vec<Answer>,
    missing: Vec<(Value, String)>,
}

struct Answer {
    object: Value,
    api_version: String,
    outcome: Result<Value, Status>,
}

impl Conversions {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The object in another version, if that is known by now; if not, a failure, and it will be.
    pub fn get(&self, object: &Value, api_version: &str) -> Result<Value, Status> {
        let mut known = self.lock();
        let same = |a: &&Answer| a.api_version == api_version && a.object == *object;
        if let Some(answer) = known.answers.iter().find(same) {
            return answer.outcome.clone();
        }
        known.missing.push((object.clone(), api_version.to_owned()));
        Err(Status::internal("a conversion is still missing"))
    }

    /// Fetches what was missing since the last call. Returns whether anything was.
    async fn fetch(&self, op: &Op<'_>) -> bool {
        let missing = std::mem::take(&mut self.lock().missing);
        let any = !missing.is_empty();
        for (object, api_version) in missing {
            let outcome = op.converted(object.clone(), &api_version).await;
            self.lock().answers.push(Answer { object, api_version, outcome });
        }
        any
    }
}

/// Computes the new object, with whatever conversions that takes.
pub(crate) async fn made(op: &Op<'_>, make: &mut Make<'_>, state: Option<&State>) -> Result<Made, Status> {
    let mut outcome = make(state);
    if let Some(conversions) = &op.conversions {
        for _ in 0..MAX_ROUNDS {
            if !conversions.fetch(op).await {
                return outcome;
            }
            outcome = make(state);
        }
        return Err(Status::internal("field management asks for conversions without end"));
    }
    outcome
}

/// Records who owns what of a new object, with whatever conversions that takes.
pub(crate) async fn record_new(op: &Op<'_>, object: &mut Value) -> Result<(), Status> {
    let Some(conversions) = &op.conversions else { return super::manage::record(op, None, object) };
    for _ in 0..MAX_ROUNDS {
        let mut new = object.clone();
        let outcome = super::manage::record(op, None, &mut new);
        if !conversions.fetch(op).await {
            *object = new;
            return outcome;
        }
    }
    Err(Status::internal("field management asks for conversions without end"))
}
