//! What was found: text, JSON, JUnit, and a timeline of each run that failed.
//!
//! Invariant: text of objects and programs is escaped where a format needs it.

use crate::{
    explore::{Exploration, Tried},
    plan::{PlanError, PlanFile},
    run::{Run, Violation},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fmt::Write,
    fs, io,
    path::{Path, PathBuf},
};

/// What a plan and a seed repeat, and what they do not.
pub const REPEATABLE: &str = "A plan fixes the faults and their points; a seed fixes which plans are tried. Neither fixes the \
operator's threads, clock and randomness, or the names that the server generates: the same plan may take another course.";

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// Where the parts of a report are.
#[derive(Clone, Debug)]
pub struct Written {
    /// The plans of runs that failed, by the number of the run.
    pub plans: BTreeMap<usize, PathBuf>,
}

fn write(path: &Path, text: &str) -> Result<(), ReportError> {
    kaji_files::replace(path, text.as_bytes(), 0o644)
        .map_err(|source| ReportError::File { path: path.to_owned(), source })
}

/// So many objects and fields that differ by themselves are named in a summary.
const NAMED: usize = 5;

/// Writes `report.json`, `junit.xml`, the timelines of the two runs without faults, and of each failed run `plan-N.yaml`, `timeline-N.txt` and `timeline-N.html`.
///
/// # Errors
/// When a file cannot be written.
pub fn write_all(
    exploration: &Exploration,
    (scenario, seed): (&Path, u64),
    directory: &Path,
) -> Result<Written, ReportError> {
    fs::create_dir_all(directory)
        .map_err(|source| ReportError::File { path: directory.to_owned(), source })?;
    let mut plans = BTreeMap::new();
    for (number, run) in exploration.reference.runs().into_iter().enumerate() {
        write(&directory.join(format!("timeline-{number}.txt")), &timeline(run))?;
    }
    for tried in exploration.tried.iter().filter(|tried| !tried.violations.is_empty()) {
        let number = tried.number;
        let plan = PlanFile {
            scenario: scenario.to_owned(),
            seed,
            faults: tried.faults.clone(),
            found: tried.violations.iter().map(ToString::to_string).collect(),
        };
        let path = directory.join(format!("plan-{number}.yaml"));
        plan.write(&path)?;
        plans.insert(number, path);
        write(&directory.join(format!("timeline-{number}.txt")), &timeline(&tried.run))?;
        let title = tried.faults.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        write(
            &directory.join(format!("timeline-{number}.html")),
            &html(&title, &tried.violations, &tried.run),
        )?;
    }
    let json = format!("{:#}\n", as_json(exploration, seed, &plans));
    write(&directory.join("report.json"), &json)?;
    write(&directory.join("junit.xml"), &junit(exploration))?;
    Ok(Written { plans })
}

fn faults_of(tried: &Tried) -> String {
    tried.faults.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

fn as_json(exploration: &Exploration, seed: u64, plans: &BTreeMap<usize, PathBuf>) -> Value {
    let run = |tried: &Tried| {
        json!({
            "number": tried.number,
            "faults": tried.faults,
            "reached": tried.reached(),
            "violations": tried.violations,
            "seenInRuns": tried.seen,
            "millis": tried.run.millis,
            "plan": plans.get(&tried.number),
            "log": tried.run.log,
        })
    };
    let points: Vec<Value> = exploration
        .reference
        .points()
        .iter()
        .map(|((client, verb, resource), count)| {
            json!({"client": client, "verb": verb, "resource": resource, "count": count})
        })
        .collect();
    json!({
        "seed": seed,
        "repeatable": REPEATABLE,
        "withoutFaults": {
            "requests": exploration.reference.requests(),
            "violations": exploration.reference.violations,
            "notCompared": exploration.reference.not_compared(),
            "points": points,
        },
        "leftOut": exploration.left_out,
        "runs": exploration.tried.iter().map(run).collect::<Vec<_>>(),
    })
}

fn junit(exploration: &Exploration) -> String {
    let failed = exploration.tried.iter().filter(|tried| !tried.violations.is_empty()).count();
    let without = !exploration.reference.violations.is_empty();
    let unreached = exploration.tried.iter().filter(|t| t.violations.is_empty() && !t.reached()).count();
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "<testsuite name=\"kaji test\" tests=\"{}\" failures=\"{}\" skipped=\"{unreached}\">",
        exploration.tried.len() + 1,
        failed + usize::from(without)
    );
    case(
        &mut out,
        "without faults",
        exploration.reference.runs()[0].millis,
        &exploration.reference.violations,
        true,
    );
    for tried in &exploration.tried {
        case(&mut out, &faults_of(tried), tried.run.millis, &tried.violations, tried.reached());
    }
    out.push_str("</testsuite>\n");
    out
}

fn case(out: &mut String, name: &str, millis: u64, violations: &[Violation], reached: bool) {
    let _ = write!(
        out,
        "  <testcase classname=\"kaji.test\" name=\"{}\" time=\"{}.{:03}\"",
        escaped(name),
        millis / 1000,
        millis % 1000
    );
    if violations.is_empty() && reached {
        out.push_str("/>\n");
        return;
    }
    out.push_str(">\n");
    for violation in violations {
        let (law, text) = (escaped(&violation.law.to_string()), escaped(&violation.text));
        let _ = writeln!(out, "    <failure type=\"{law}\">{text}</failure>");
    }
    if violations.is_empty() {
        out.push_str("    <skipped message=\"the point was not reached\"/>\n");
    }
    out.push_str("  </testcase>\n");
}

/// Text in XML and HTML. Characters that XML cannot have are replaced.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(character),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A line of a timeline.
struct Line {
    at_millis: u64,
    class: &'static str,
    text: String,
}

fn lines(run: &Run) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for note in &run.notes {
        let class = if note.text.starts_with("VIOLATION") { "violation" } else { "note" };
        lines.push(Line { at_millis: note.at_millis, class, text: note.text.clone() });
    }
    for record in &run.records {
        let object = match (record.namespace.as_str(), record.name.as_str()) {
            (_, "") => String::new(),
            ("", name) => format!(" {name}"),
            (namespace, name) => format!(" {namespace}/{name}"),
        };
        let code = match (record.code, record.point.verb.as_str()) {
            (_, "watch") => "event".to_owned(),
            (Some(code), _) => code.to_string(),
            (None, _) => "no answer".to_owned(),
        };
        let revision = record.revision.map(|revision| format!(" at {revision}")).unwrap_or_default();
        let fault = record.fault.as_ref().map(|fault| format!("  <-- {fault}")).unwrap_or_default();
        let (point, class) = (&record.point, if record.fault.is_some() { "fault" } else { "request" });
        let text =
            format!("{} {} {}{object} -> {code}{revision}{fault}", point.client, point.verb, point.resource);
        lines.push(Line { at_millis: record.at_millis, class, text });
    }
    lines.sort_by_key(|line| line.at_millis);
    lines
}

/// A run as text, a line an event.
#[must_use]
pub fn timeline(run: &Run) -> String {
    let mut out = String::new();
    for line in lines(run) {
        let mark = if line.class == "request" { ' ' } else { '*' };
        let (seconds, millis) = (line.at_millis / 1000, line.at_millis % 1000);
        let _ = writeln!(out, "{seconds:>4}.{millis:03} {mark} {}", line.text);
    }
    out
}

fn html(title: &str, violations: &[Violation], run: &Run) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title><style>\
         body{{font:14px/1.4 system-ui,sans-serif;margin:2em}}td{{padding:0 .6em;font-family:monospace}}\
         .fault{{background:#fde68a}}.violation{{background:#fecaca}}.note{{background:#e5e7eb}}\
         </style></head><body><h1>{0}</h1><ul>\n",
        escaped(title)
    );
    for violation in violations {
        let _ = writeln!(out, "<li>{}</li>", escaped(&violation.to_string()));
    }
    out.push_str("</ul><table>\n");
    for line in lines(run) {
        let (seconds, millis) = (line.at_millis / 1000, line.at_millis % 1000);
        let _ = writeln!(
            out,
            "<tr class=\"{}\"><td>{seconds}.{millis:03}</td><td>{}</td></tr>",
            line.class,
            escaped(&line.text)
        );
    }
    let _ = writeln!(out, "</table><p>{}</p></body></html>", escaped(REPEATABLE));
    out
}

/// What was found, in few lines: one for each law, fault and request, with the first plan that shows it.
#[must_use]
pub fn summary(exploration: &Exploration, written: &Written) -> String {
    let mut out = String::new();
    for violation in &exploration.reference.violations {
        let _ = writeln!(out, "without faults, {violation}");
    }
    let differing = exploration.reference.not_compared();
    if !differing.is_empty() {
        let named = differing.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = differing.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let _ =
            writeln!(out, "two runs without faults differ in what is not compared therefore: {named}{more}");
    }
    let mut groups: BTreeMap<String, Vec<&Tried>> = BTreeMap::new();
    for tried in exploration.tried.iter().filter(|tried| !tried.violations.is_empty()) {
        let what = |fault: &crate::fault::Fault| {
            format!("{} at {} of {}", fault.kind, fault.at.verb, fault.at.resource)
        };
        let faults = tried.faults.iter().map(what).collect::<Vec<_>>().join(" and ");
        groups.entry(faults).or_default().push(tried);
    }
    for (faults, members) in &groups {
        // One that was seen twice says more.
        let Some(tried) = members.iter().max_by_key(|tried| (tried.seen, usize::MAX - tried.number)) else {
            continue;
        };
        let _ = writeln!(out, "FAILED {faults}: {} of the runs", members.len());
        for violation in tried.violations.iter().take(5) {
            let _ = writeln!(out, "  {violation}");
        }
        if tried.seen == Some(1) {
            out.push_str("  seen in one of two runs\n");
        }
        if let Some(plan) = written.plans.get(&tried.number) {
            let _ = writeln!(out, "  again: kaji test replay {}", plan.display());
        }
    }
    let failed = exploration.tried.iter().filter(|tried| !tried.violations.is_empty()).count();
    let unreached = exploration.tried.iter().filter(|t| t.violations.is_empty() && !t.reached()).count();
    let _ = writeln!(
        out,
        "{} runs with faults: {failed} failed, {unreached} did not reach their point, {} points left out",
        exploration.tried.len(),
        exploration.left_out
    );
    out
}
