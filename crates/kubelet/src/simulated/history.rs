//! The log of a simulated container's run: what it printed, as far as its command is understood; else what has happened to it.

use super::runtime::Run;
use crate::pods::core::{Container, Pod};
use crate::pods::log_record::{Record, Selection, Writer};
use crate::pods::model;
use jiff::Timestamp;

/// A line, and when it was written.
pub type Line = (Timestamp, String);

/// The lines of a run so far.
#[must_use]
pub fn lines(pod: &Pod, container: &Container, run: &Run) -> Vec<Line> {
    if !run.stdout.is_empty() {
        return run.stdout.split_inclusive('\n').map(|line| (run.started, line.to_owned())).collect();
    }
    let mut events = vec![];
    let name = format!("{}/{}/{}", model::namespace(pod), model::name(pod), container.name);
    let image = container.image.as_deref().unwrap_or_default();
    events.push((run.started, format!("started {name}, image {image}, restart {}", run.attempt)));
    let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let ready = conditions.into_iter().find(|c| c.type_ == "Ready" && c.status == "True");
    let ready = ready.and_then(|c| c.last_transition_time.as_ref()).map(|t| t.0);
    // The condition has whole seconds.
    if let Some(at) = ready.filter(|at| run.ended.is_none() && at.as_second() >= run.started.as_second()) {
        events.push((at.max(run.started), "the pod is ready".to_owned()));
    }
    if let Some((since, _)) = run.stopping.as_deref() {
        events.push((*since, "asked to stop".to_owned()));
    }
    if let Some(ended) = &run.ended {
        events.push((ended.at, format!("ended with exit code {} ({})", ended.code, ended.reason())));
    }
    events.sort_by_key(|(at, _)| *at);
    events.into_iter().map(|(at, text)| (at, format!("{at:.3} {text}\n"))).collect()
}

/// Writes lines as a client asked for them. Whether there may be more.
pub fn write(lines: &[Line], writer: &mut Writer, out: &mut Vec<u8>) -> bool {
    lines.iter().all(|(time, text)| {
        let time_text = format!("{time:.9}");
        writer
            .write(&Record { time_text: &time_text, time: *time, stderr: false, text: text.as_bytes() }, out)
    })
}

/// How many lines are left out before the last `tail` ones that a selection shows.
#[must_use]
pub fn skipped(lines: &[Line], tail: Option<u64>, selection: &Selection) -> usize {
    let tail = tail.map_or(usize::MAX, |tail| usize::try_from(tail).unwrap_or(usize::MAX));
    let old = lines.iter().take_while(|(at, _)| selection.since.is_some_and(|since| *at < since)).count();
    old.max(lines.len().saturating_sub(tail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::runtime::Ended;
    use serde_json::json;

    #[test]
    fn a_log_is_the_history_of_its_container() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": "p", "uid": "u"},
            "spec": {"containers": [{"name": "c", "image": "i:1"}]},
        }))
        .unwrap();
        let mut run = Run {
            attempt: 1,
            sandbox: 0,
            hash: 0,
            started: at("2026-01-01T00:00:01.25Z"),
            planned: None,
            stopping: None,
            ended: Some(Box::new(Ended {
                at: at("2026-01-01T00:00:03Z"),
                code: 137,
                reason: "OOMKilled".into(),
            })),
            deaf: false,
            followed: false,
            stdout: "".into(),
            message: "".into(),
            actual: Default::default(),
        };
        let shown = |run: &Run, tail, selection: Selection| {
            let lines = lines(&pod, &model::containers(&pod)[0], run);
            let from = skipped(&lines, tail, &selection);
            let mut out = vec![];
            write(&lines[from..], &mut Writer::new(selection), &mut out);
            String::from_utf8(out).unwrap()
        };
        let mut all = shown(&run, None, Selection::default());
        all += "--\n";
        all += &shown(&run, Some(1), Selection { timestamps: true, ..Selection::default() });
        all += "--\n";
        all +=
            &shown(&run, None, Selection { since: Some(at("2026-01-01T00:00:02Z")), ..Selection::default() });
        run.stdout = "one\ntwo\n".into();
        all += "--\n";
        all += &shown(&run, None, Selection { limit: Some(5), ..Selection::default() });
        expect_test::expect![[r#"
            2026-01-01T00:00:01.250Z started n/p/c, image i:1, restart 1
            2026-01-01T00:00:03.000Z ended with exit code 137 (OOMKilled)
            --
            2026-01-01T00:00:03.000000000Z 2026-01-01T00:00:03.000Z ended with exit code 137 (OOMKilled)
            --
            2026-01-01T00:00:03.000Z ended with exit code 137 (OOMKilled)
            --
            one
            t"#]]
        .assert_eq(&all);
    }
}
