//! Events as they come.
//!
//! Invariants: after a watch that broke, or of which the revision is forgotten (410), everything is listed again, and what was shown in
//! the same state is left out. Attempts have pauses between them, which grow up to a bound.

use super::{AGENT, Event, Events, is_wanted, unreadable};
use crate::ExplainError;
use futures_util::StreamExt;
use kaji_meta::object;
use kaji_runtime::{Error, feed::ObjectEvent};
use serde_json::Value;
use std::{io, time::Duration};

const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Servers send a bookmark each minute: after this the connection is dead.
const SILENCE: Duration = Duration::from_secs(200);

/// Why no more events are shown.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The server refuses to say more.
    #[error(transparent)]
    Refused(#[from] ExplainError),
    /// They cannot be written.
    #[error(transparent)]
    Output(#[from] io::Error),
}

/// How an attempt ended.
struct Round {
    /// Whether the server answered at all.
    answered: bool,
    /// Whether the watch sent something.
    progressed: bool,
    /// `None` as the server ends each watch after a while: the next one goes on from its last revision.
    failure: Option<Error>,
}

/// Whether there is no sense in trying again.
fn is_final(error: &Error) -> bool {
    error.code().is_some_and(|code| (400..500).contains(&code) && !matches!(code, 408 | 410 | 429))
}

impl Events<'_> {
    /// Shows all events that there are, and then each as it comes; `note` gets interruptions. Ends with an error alone.
    ///
    /// # Errors
    /// When the server refuses, or an event cannot be shown.
    pub async fn follow(
        &mut self,
        show: &mut (dyn FnMut(&Event) -> io::Result<()> + Send),
        note: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), FollowError> {
        let (mut pause, mut is_first, mut is_away) = (FIRST_PAUSE, true, false);
        loop {
            let round = self.round(show).await?;
            if is_first {
                self.unknown().iter().for_each(|text| note(text));
            }
            if round.answered {
                is_away = false;
            }
            if round.progressed {
                pause = FIRST_PAUSE;
            }
            if let Some(error) = round.failure {
                if is_final(&error) || (is_first && !round.answered) {
                    return Err(unreadable(error).into());
                }
                // Everything is listed again.
                self.revision.clear();
                if error.code() != Some(410) && !std::mem::replace(&mut is_away, true) {
                    note(&format!("{}; trying again", unreadable(error)));
                }
            }
            is_first = false;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Lists, if need be, and watches until the watch ends.
    async fn round(
        &mut self,
        show: &mut (dyn FnMut(&Event) -> io::Result<()> + Send),
    ) -> Result<Round, FollowError> {
        let mut round = Round { answered: false, progressed: false, failure: None };
        if self.revision.is_empty() {
            match self.read().await {
                Ok(events) => events.iter().try_for_each(&mut *show)?,
                Err(error) => return Ok(Round { failure: Some(error), ..round }),
            }
            round.answered = true;
        }
        let mut watch = match self.feed.watch(AGENT, &self.collection, &self.revision).await {
            Ok(watch) => watch,
            Err(error) => return Ok(Round { failure: Some(error), ..round }),
        };
        round.answered = true;
        loop {
            let batch = match tokio::time::timeout(SILENCE, watch.next()).await {
                Err(_) => return Ok(Round { failure: Some(Error::Timeout(SILENCE)), ..round }),
                Ok(None) => return Ok(round),
                Ok(Some(Err(error))) => return Ok(Round { failure: Some(error), ..round }),
                Ok(Some(Ok(batch))) => batch,
            };
            round.progressed = true;
            for event in batch {
                if let Some(error) = self.take(event, show).await? {
                    return Ok(Round { failure: Some(error), ..round });
                }
            }
        }
    }

    /// Shows what a watch sent, if it is asked for; or why the watch is over.
    async fn take(
        &mut self,
        event: ObjectEvent,
        show: &mut (dyn FnMut(&Event) -> io::Result<()> + Send),
    ) -> Result<Option<Error>, FollowError> {
        let (ObjectEvent::Changed(bytes)
        | ObjectEvent::Deleted(bytes)
        | ObjectEvent::Bookmark(bytes)
        | ObjectEvent::Failed(bytes)) = &event;
        if matches!(event, ObjectEvent::Failed(_)) {
            return Ok(Some(Error::of_watch(bytes)));
        }
        let value: Value = match serde_json::from_slice(bytes) {
            Ok(value) => value,
            Err(error) => return Ok(Some(Error::Decode(error.to_string()))),
        };
        object::resource_version(&value).clone_into(&mut self.revision);
        match event {
            ObjectEvent::Deleted(_) => drop(self.shown.remove(object::uid(&value))),
            ObjectEvent::Changed(_) => {
                let event = Event::of(&value);
                let belongs = match &mut self.family {
                    Some(family) => family.takes(self.api, &self.discovery, &event).await,
                    None => true,
                };
                if belongs && is_wanted(&self.types, &event) {
                    show(&event)?;
                    self.shown.insert(event.uid, event.revision);
                }
            }
            ObjectEvent::Bookmark(_) | ObjectEvent::Failed(_) => {}
        }
        Ok(None)
    }
}
