//! The options of a request for logs: a query, read and validated as `v1.PodLogOptions`.
//!
//! Source: upstream's `ValidatePodLogOptions`, and the decoder of query parameters.

use crate::pods::log_record::{Selection, Streams};
use jiff::{SignedDuration, Timestamp};
use kaji_meta::query::Query;

/// What a client asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Records that come later are sent, until the container ends.
    pub follow: bool,
    /// Of the container before the present one.
    pub previous: bool,
    /// From the last so many records.
    pub tail: Option<u64>,
    /// Which records, and what of them.
    pub selection: Selection,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadOptions {
    /// A value is malformed.
    Undecodable,
    /// Values are out of range, or exclude each other.
    Invalid,
}

/// Reads the options of a query, at a moment from which `sinceSeconds` counts.
///
/// # Errors
/// Why they are refused.
pub fn parse(query: &Query, now: Timestamp) -> Result<LogOptions, BadOptions> {
    let number = |key: &str| query.number(key).map_err(|_| BadOptions::Undecodable);
    let flag = |key: &str| query.flag(key).unwrap_or_default();
    // `tail` is the old name of `tailLines`, and wins.
    let tail = match query.text("tail") {
        "" => number("tailLines")?,
        "all" => None,
        _ => number("tail")?,
    };
    let (limit, seconds) = (number("limitBytes")?, number("sinceSeconds")?);
    let since_time = match query.text("sinceTime") {
        "" => None,
        text => Some(text.parse::<Timestamp>().map_err(|_| BadOptions::Undecodable)?),
    };
    let streams = match query.first("stream") {
        None | Some("All") => Streams::All,
        Some("Stdout") => Streams::Stdout,
        Some("Stderr") => Streams::Stderr,
        Some(_) => return Err(BadOptions::Invalid),
    };
    let positive = |number: Option<i64>| number.is_none_or(|n| n >= 1);
    let valid = tail.is_none_or(|n| n >= 0)
        && positive(limit)
        && positive(seconds)
        && !(seconds.is_some() && since_time.is_some())
        && !(streams != Streams::All && tail.is_some());
    if !valid {
        return Err(BadOptions::Invalid);
    }
    let ago = |seconds: i64| now.saturating_sub(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MIN);
    Ok(LogOptions {
        follow: flag("follow"),
        previous: flag("previous"),
        tail: tail.and_then(|n| u64::try_from(n).ok()),
        selection: Selection {
            since: since_time.or(seconds.map(ago)),
            timestamps: flag("timestamps"),
            limit: limit.and_then(|n| u64::try_from(n).ok()),
            streams,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_options_of_queries() {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let queries = [
            "",
            "follow=true&previous=1&timestamps&tailLines=0&limitBytes=5&stream=All",
            "sinceSeconds=60&stream=Stderr&follow=false",
            "sinceTime=2025-01-01T00:00:00Z&tail=3",
            "tail=all&tailLines=4",
            "tailLines=x",
            "sinceTime=yesterday",
            "tailLines=-1",
            "limitBytes=0",
            "sinceSeconds=0",
            "sinceSeconds=1&sinceTime=2025-01-01T00:00:00Z",
            "stream=Stdout&tailLines=1",
            "stream=stdout",
        ];
        let lines: Vec<String> = queries
            .iter()
            .map(|query| {
                let shown = match parse(&Query::parse(query), now) {
                    Err(wrong) => format!("{wrong:?}"),
                    Ok(o) => format!(
                        "follow {} previous {} tail {:?} since {:?} times {} limit {:?} {:?}",
                        o.follow,
                        o.previous,
                        o.tail,
                        o.selection.since.map(|t| t.to_string()),
                        o.selection.timestamps,
                        o.selection.limit,
                        o.selection.streams
                    ),
                };
                format!("{query}: {shown}")
            })
            .collect();
        expect_test::expect![[r#"
            : follow false previous false tail None since None times false limit None All
            follow=true&previous=1&timestamps&tailLines=0&limitBytes=5&stream=All: follow true previous true tail Some(0) since None times true limit Some(5) All
            sinceSeconds=60&stream=Stderr&follow=false: follow false previous false tail None since Some("2025-12-31T23:59:00Z") times false limit None Stderr
            sinceTime=2025-01-01T00:00:00Z&tail=3: follow false previous false tail Some(3) since Some("2025-01-01T00:00:00Z") times false limit None All
            tail=all&tailLines=4: follow false previous false tail None since None times false limit None All
            tailLines=x: Undecodable
            sinceTime=yesterday: Undecodable
            tailLines=-1: Invalid
            limitBytes=0: Invalid
            sinceSeconds=0: Invalid
            sinceSeconds=1&sinceTime=2025-01-01T00:00:00Z: Invalid
            stream=Stdout&tailLines=1: Invalid
            stream=stdout: Invalid"#]].assert_eq(&lines.join("\n"));
    }
}
