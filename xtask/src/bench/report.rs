//! What is measured, what it is compared with, and how it is shown: a table for people, JSON for programs. Pure.

use super::measures::{Better, MEASURES, Measure};
use super::stats::{Unit, digits, grouped};
use serde_json::{Value, json};
use std::time::Duration;

/// How many objects, watchers and so on a run uses.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// What `--scale` said.
    pub scale: f64,
    /// Pods of about 4 kB for memory, GET and LIST.
    pub pods: usize,
    /// Creations one after the other, of each kind of object.
    pub serial: usize,
    /// ConfigMaps created by many clients.
    pub creates: usize,
    /// Watch connections; may be lowered by the limit on open files.
    pub watchers: usize,
    /// Objects created under the eyes of the watchers.
    pub events: usize,
    /// CustomResourceDefinitions.
    pub crds: usize,
    /// Pods to be scheduled.
    pub bound: usize,
    /// Replicas of a Deployment.
    pub replicas: usize,
    /// Pods that a server starts again with.
    pub restart: usize,
    /// Pods that run on a node, one after the other.
    pub lives: usize,
    /// Pods that run on a node at once.
    pub at_once: usize,
    /// Services of a pod.
    pub services: usize,
}

impl Counts {
    /// The issue's counts times `scale`, never so small that nothing is measured.
    pub fn scaled(scale: f64) -> Counts {
        let count = |full: f64, least: usize| ((full * scale).round() as usize).max(least);
        Counts {
            scale,
            pods: count(50_000.0, 50),
            serial: count(1_000.0, 50),
            creates: count(20_000.0, 640),
            watchers: count(1_000.0, 5),
            events: 1_000,
            crds: count(500.0, 5),
            bound: count(10_000.0, 50),
            replicas: count(1_000.0, 10),
            restart: count(60_000.0, 60),
            lives: count(100.0, 10),
            at_once: count(100.0, 5),
            services: count(10_000.0, 10),
        }
    }

    /// Whether figures that depend on a count can be compared with the reference.
    fn full(&self) -> bool {
        (self.scale - 1.0).abs() < 1e-9
    }

    fn fill(&self, label: &str) -> String {
        let number = |n: usize| grouped(n as i64);
        label
            .replace("{pods}", &number(self.pods))
            .replace("{watchers}", &number(self.watchers))
            .replace("{crds}", &number(self.crds))
            .replace("{bound}", &number(self.bound))
            .replace("{replicas}", &number(self.replicas))
            .replace("{restart}", &number(self.restart))
            .replace("{at_once}", &number(self.at_once))
            .replace("{services}", &number(self.services))
    }
}

/// A phase as it went.
#[derive(Debug)]
pub struct Phase {
    /// Its name, as in `--only`.
    pub name: &'static str,
    /// How long it took, with preparation and cleaning.
    pub took: Duration,
    /// Processor time of this program.
    pub generator: Option<Duration>,
    /// Processor time of the server.
    pub server: Option<Duration>,
    /// Why it failed.
    pub error: Option<String>,
}

/// The figures so far.
#[derive(Debug)]
pub struct Report {
    /// The run's counts.
    pub counts: Counts,
    /// The server's `gitVersion`.
    pub version: String,
    values: Vec<(&'static str, f64)>,
    /// What was measured beside, in place of the references that are known beforehand.
    beside: Vec<(&'static str, f64)>,
    /// Whether references that are known beforehand are left out.
    only_beside: bool,
    /// What the reader must know to judge the figures.
    pub notes: Vec<String>,
    /// The phases that ran.
    pub phases: Vec<Phase>,
}

impl Report {
    /// An empty report.
    pub fn new(counts: Counts) -> Report {
        Report {
            counts,
            version: String::new(),
            values: vec![],
            beside: vec![],
            only_beside: false,
            notes: vec![],
            phases: vec![],
        }
    }

    /// Records a figure of `MEASURES`.
    pub fn set(&mut self, id: &'static str, value: f64) {
        debug_assert!(MEASURES.iter().any(|m| m.id == id), "{id}");
        self.values.retain(|(known, _)| *known != id);
        self.values.push((id, value));
    }

    /// Records what a figure of `MEASURES` is compared with in this run.
    pub fn set_beside(&mut self, id: &'static str, value: f64) {
        debug_assert!(MEASURES.iter().any(|m| m.id == id), "{id}");
        self.beside.retain(|(known, _)| *known != id);
        self.beside.push((id, value));
    }

    /// Compares with the figures of another run, in the form of [`Report::json`], instead of those that are known beforehand.
    pub fn compare_with(&mut self, figures: &Value) {
        let same_counts = figures["scale"].as_f64() == Some(self.counts.scale);
        self.only_beside = true;
        for figure in figures["measures"].as_array().into_iter().flatten() {
            let measure = MEASURES.iter().find(|m| figure["id"] == m.id && (same_counts || !m.sized));
            if let (Some(measure), Some(value)) = (measure, figure["value"].as_f64()) {
                self.set_beside(measure.id, value);
            }
        }
        let server = figures["server"].as_str().unwrap_or("an unknown server");
        self.notes.push(format!("upstream: {server}, measured on this machine"));
    }

    fn beside(&self, measure: &Measure) -> Option<f64> {
        self.beside.iter().find(|(id, _)| *id == measure.id).map(|(_, value)| *value)
    }

    fn reference(&self, measure: &Measure) -> Option<f64> {
        self.beside(measure).or(measure.reference.filter(|_| !self.only_beside))
    }

    /// A figure that was recorded.
    pub fn value(&self, id: &str) -> Option<f64> {
        self.values.iter().find(|(known, _)| *known == id).map(|(_, value)| *value)
    }

    /// Records a length of time.
    pub fn time(&mut self, id: &'static str, value: Duration) {
        self.set(id, value.as_secs_f64());
    }

    /// Whether a phase failed.
    pub fn failed(&self) -> bool {
        self.phases.iter().any(|p| p.error.is_some())
    }

    fn rows(&self) -> impl Iterator<Item = (&'static Measure, f64)> {
        MEASURES.iter().filter_map(|m| {
            let value = self.values.iter().find(|(id, _)| *id == m.id)?.1;
            Some((m, value))
        })
    }

    /// How many times better than `against`.
    fn ratio(&self, measure: &Measure, value: f64, against: Option<f64>) -> Option<f64> {
        // What was measured beside has the same counts.
        if measure.sized && !self.counts.full() && self.beside(measure).is_none() {
            return None;
        }
        let (better, worse) = match measure.better {
            Better::More => (value, against?),
            Better::Less => (against?, value),
            Better::Neither => return None,
        };
        (worse > 0.0 && better >= 0.0).then(|| better / worse)
    }

    fn met(&self, measure: &Measure, value: f64) -> Option<bool> {
        if measure.sized && !self.counts.full() {
            return None;
        }
        let aim = measure.aim?;
        match measure.better {
            Better::More => Some(value >= aim),
            Better::Less => Some(value <= aim),
            Better::Neither => None,
        }
    }

    /// The table and what belongs under it.
    pub fn table(&self) -> String {
        let mut rows = vec![["measure", "better by", "measured", "upstream", "aim", ""].map(str::to_owned)];
        let mut show = |m: &Measure, value: f64| {
            let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
            let met = match self.met(m, value) {
                Some(true) => "met",
                Some(false) => "missed",
                None => "",
            };
            rows.push([
                self.counts.fill(m.label),
                or_dash(self.ratio(m, value, self.reference(m)).map(|r| format!("{}x", digits(r)))),
                m.unit.show(value),
                or_dash(self.reference(m).map(|r| m.unit.show(r))),
                or_dash(m.aim.map(|a| m.unit.show(a))),
                met.to_owned(),
            ]);
        };
        self.rows().for_each(|(m, value)| show(m, value));
        let mut text = aligned(&rows);
        text.push('\n');
        let mut rows = vec![["phase", "took", "generator CPU", "server CPU", ""].map(str::to_owned)];
        let seconds = |d: Option<Duration>| d.map_or("-".into(), |d| Unit::Seconds.show(d.as_secs_f64()));
        rows.extend(self.phases.iter().map(|p| {
            let error = p.error.as_ref().map_or(String::new(), |e| format!("FAILED: {e}"));
            [p.name.into(), seconds(Some(p.took)), seconds(p.generator), seconds(p.server), error]
        }));
        text.push_str(&aligned(&rows));
        if !self.counts.full() {
            text.push_str(&format!(
                "\nscale {}: figures that depend on a count are not compared with aims, or with what is known beforehand\n",
                self.counts.scale
            ));
        }
        for note in &self.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        text
    }

    /// The same for programs; values are in seconds, bytes and per second.
    pub fn json(&self) -> Value {
        let measures: Vec<Value> = self
            .rows()
            .map(|(m, value)| {
                json!({
                    "id": m.id,
                    "label": self.counts.fill(m.label),
                    "unit": m.unit.name(),
                    "better": match m.better {
                        Better::More => Some("more"),
                        Better::Less => Some("less"),
                        Better::Neither => None,
                    },
                    "value": value,
                    "reference": self.reference(m),
                    "ratio": self.ratio(m, value, self.reference(m)),
                    "aim": m.aim,
                    "met": self.met(m, value),
                })
            })
            .collect();
        let phases: Vec<Value> = self
            .phases
            .iter()
            .map(|p| {
                json!({
                    "name": p.name,
                    "seconds": p.took.as_secs_f64(),
                    "generatorCpuSeconds": p.generator.map(|d| d.as_secs_f64()),
                    "serverCpuSeconds": p.server.map(|d| d.as_secs_f64()),
                    "error": p.error,
                })
            })
            .collect();
        let counts = &self.counts;
        json!({
            "server": self.version,
            "scale": counts.scale,
            "counts": {
                "pods": counts.pods, "serial": counts.serial, "creates": counts.creates, "watchers": counts.watchers,
                "eventsPerWatcher": counts.events, "crds": counts.crds, "bound": counts.bound,
                "restart": counts.restart,
                "lives": counts.lives, "atOnce": counts.at_once,
            },
            "measures": measures,
            "phases": phases,
            "notes": self.notes,
        })
    }
}

/// Columns as wide as they must be: the first and the last to the left, figures to the right.
fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (i, cell) in row.iter().enumerate() {
            match i {
                0 => line.push_str(&format!("{cell:<width$}", width = widths[i])),
                i if i == N - 1 => line.push_str(&format!("  {cell}")),
                _ => line.push_str(&format!("  {cell:>width$}", width = widths[i])),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use std::collections::BTreeSet;

    fn report(scale: f64) -> Report {
        let mut report = Report::new(Counts::scaled(scale));
        report.version = "v1.37.0".into();
        report.time("start", Duration::from_millis(58));
        report.set("idle_memory", 22.1e6);
        report.set("list", 0.9);
        report.set("lists_memory", -4e6);
        report.set("gets", 50_000.0);
        report.set("watch_lost", 0.0);
        report.set("serial_p99", 0.004_5);
        report.phases.push(Phase {
            name: "start",
            took: Duration::from_millis(60),
            generator: Some(Duration::from_millis(10)),
            server: None,
            error: None,
        });
        report.phases.push(Phase {
            name: "bound",
            took: Duration::from_secs(30),
            generator: None,
            server: Some(Duration::from_secs(2)),
            error: Some("no pod was bound".into()),
        });
        report.notes.push("a note".into());
        report
    }

    #[test]
    fn prints_a_table() {
        expect![[r#"
            measure                                  better by  measured  upstream       aim
            start: exec to /readyz                       55.2x     58 ms     3.2 s     60 ms  met
            memory, idle                                 23.5x   22.1 MB    520 MB     20 MB  missed
            GETs, 64 clients: pods                       34.6x  50,000/s   1,447/s  43,000/s  met
            LIST of 50,000 pods: time                       3x    900 ms     2.7 s    180 ms  missed
            eight such LISTs at once: memory on top          -     -4 MB    1.2 GB      8 MB  met
            create, one client: ConfigMap, p99               -    4.5 ms         -         -
            watch: events lost                               -         0         -         0  met

            phase   took  generator CPU  server CPU
            start  60 ms          10 ms           -
            bound   30 s              -         2 s  FAILED: no pod was bound
            note: a note
        "#]]
        .assert_eq(&report(1.0).table());
    }

    #[test]
    fn a_table_of_a_scaled_run() {
        expect![[r#"
            measure                                  better by  measured  upstream       aim
            start: exec to /readyz                       55.2x     58 ms     3.2 s     60 ms  met
            memory, idle                                 23.5x   22.1 MB    520 MB     20 MB  missed
            GETs, 64 clients: pods                       34.6x  50,000/s   1,447/s  43,000/s  met
            LIST of 5,000 pods: time                         -    900 ms     2.7 s    180 ms
            eight such LISTs at once: memory on top          -     -4 MB    1.2 GB      8 MB
            create, one client: ConfigMap, p99               -    4.5 ms         -         -
            watch: events lost                               -         0         -         0  met

            phase   took  generator CPU  server CPU
            start  60 ms          10 ms           -
            bound   30 s              -         2 s  FAILED: no pod was bound

            scale 0.1: figures that depend on a count are not compared with aims, or with what is known beforehand
            note: a note
        "#]]
        .assert_eq(&report(0.1).table());
    }

    #[test]
    fn prints_json_for_programs() {
        let mut value = report(1.0).json();
        value["measures"].as_array_mut().unwrap().truncate(2);
        expect![[r#"
            {
              "counts": {
                "atOnce": 100,
                "bound": 10000,
                "crds": 500,
                "creates": 20000,
                "eventsPerWatcher": 1000,
                "lives": 100,
                "pods": 50000,
                "restart": 60000,
                "serial": 1000,
                "watchers": 1000
              },
              "measures": [
                {
                  "aim": 0.06,
                  "better": "less",
                  "id": "start",
                  "label": "start: exec to /readyz",
                  "met": true,
                  "ratio": 55.17241379310345,
                  "reference": 3.2,
                  "unit": "seconds",
                  "value": 0.058
                },
                {
                  "aim": 20000000.0,
                  "better": "less",
                  "id": "idle_memory",
                  "label": "memory, idle",
                  "met": false,
                  "ratio": 23.529411764705884,
                  "reference": 520000000.0,
                  "unit": "bytes",
                  "value": 22100000.0
                }
              ],
              "notes": [
                "a note"
              ],
              "phases": [
                {
                  "error": null,
                  "generatorCpuSeconds": 0.01,
                  "name": "start",
                  "seconds": 0.06,
                  "serverCpuSeconds": null
                },
                {
                  "error": "no pod was bound",
                  "generatorCpuSeconds": null,
                  "name": "bound",
                  "seconds": 30.0,
                  "serverCpuSeconds": 2.0
                }
              ],
              "scale": 1.0,
              "server": "v1.37.0"
            }"#]]
        .assert_eq(&serde_json::to_string_pretty(&value).unwrap());
    }

    #[test]
    fn ids_are_unique_and_later_values_win() {
        let ids: BTreeSet<_> = MEASURES.iter().map(|m| m.id).collect();
        assert_eq!(ids.len(), MEASURES.len());
        let mut report = report(1.0);
        report.set("gets", 1.0);
        assert_eq!(report.rows().find(|(m, _)| m.id == "gets").unwrap().1, 1.0);
        assert!(report.failed());
    }

    #[test]
    fn what_was_measured_beside_is_compared_with() {
        let mut report = Report::new(Counts::scaled(1.0));
        report.set("node_run_p50", 0.04);
        report.set("node_idle_cpu", 0.002);
        report.set_beside("node_run_p50", 0.2);
        let table = report.table();
        let shown: Vec<&str> = table.lines().filter(|line| line.starts_with("node")).collect();
        expect![[r#"
            node: pod created to Running, p50         5x     40 ms    200 ms  80 ms  met
            node: CPU a second with 100 pods           -      2 ms         -  10 ms  met"#]]
        .assert_eq(&shown.join("\n"));
    }

    #[test]
    fn figures_of_another_run_replace_what_is_known_beforehand() {
        let mut other = Report::new(Counts::scaled(0.1));
        other.version = "v1.36.2".into();
        other.set("list", 2.7);
        other.set("gets", 5_000.0);
        let figures = other.json();
        let mut same_counts = report(0.1);
        same_counts.compare_with(&figures);
        let mut other_counts = report(1.0);
        other_counts.compare_with(&figures);
        let shown = [same_counts, other_counts].map(|report| {
            let table = report.table();
            let rows = table
                .lines()
                .filter(|l| ["start:", "GETs", "LIST", "note: up"].iter().any(|s| l.starts_with(s)));
            rows.collect::<Vec<_>>().join("\n")
        });
        expect![[r#"
            start: exec to /readyz                           -     58 ms         -     60 ms  met
            GETs, 64 clients: pods                         10x  50,000/s   5,000/s  43,000/s  met
            LIST of 5,000 pods: time                        3x    900 ms     2.7 s    180 ms
            note: upstream: v1.36.2, measured on this machine
            start: exec to /readyz                           -     58 ms         -     60 ms  met
            GETs, 64 clients: pods                         10x  50,000/s   5,000/s  43,000/s  met
            LIST of 50,000 pods: time                        -    900 ms         -    180 ms  missed
            note: upstream: v1.36.2, measured on this machine"#]]
        .assert_eq(&shown.join("\n"));
    }

    #[test]
    fn counts_never_vanish() {
        expect!["Counts { scale: 0.0001, pods: 50, serial: 50, creates: 640, watchers: 5, events: 1000, crds: 5, bound: 50, replicas: 10, restart: 60, lives: 10, at_once: 5, services: 10 }"].assert_eq(&format!("{:?}", Counts::scaled(0.0001)));
    }
}
