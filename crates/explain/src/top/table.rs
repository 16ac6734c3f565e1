//! Figures as text.

use super::{NodeUsage, PodUsage, Usage};
use crate::table::align;

const UNKNOWN: &str = "<unknown>";
const MEBI: i64 = 1 << 20;

/// Nodes, in `kubectl top`'s columns.
pub fn node_table(nodes: &[NodeUsage]) -> String {
    let mut rows = vec![["NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)"].map(str::to_owned)];
    rows.extend(nodes.iter().map(|node| {
        let percent = |figure: fn(&Usage) -> i64| {
            let of = |usage: Option<&Usage>| usage.map(figure);
            match (of(node.usage.as_ref()), of(node.allocatable.as_ref())) {
                (Some(used), Some(all)) if all > 0 => {
                    format!("{}%", i128::from(used) * 100 / i128::from(all))
                }
                _ => UNKNOWN.to_owned(),
            }
        };
        let [cpu, memory] = node.usage.map_or([UNKNOWN.to_owned(), UNKNOWN.to_owned()], figures);
        [node.name.clone(), cpu, percent(|u| u.cpu_millicores), memory, percent(|u| u.memory_bytes)]
    }));
    align(&rows)
}

/// Pods, in `kubectl top`'s columns; each container, if asked for; with namespaces, if they are of several.
pub fn pod_table(pods: &[PodUsage], containers: bool, all_namespaces: bool) -> String {
    let head = if containers { "POD" } else { "NAME" };
    let mut rows = vec![["NAMESPACE", head, "NAME", "CPU(cores)", "MEMORY(bytes)"].map(str::to_owned)];
    for pod in pods {
        let row = |container: &str, usage: Usage| {
            let [cpu, memory] = figures(usage);
            [pod.namespace.clone(), pod.name.clone(), container.to_owned(), cpu, memory]
        };
        match containers {
            true => rows.extend(pod.containers.iter().map(|container| row(&container.name, container.usage))),
            false => rows.push(row("", pod.usage)),
        }
    }
    match (all_namespaces, containers) {
        (true, true) => align(&rows),
        (true, false) => {
            align(&columns(rows, |[namespace, pod, _, cpu, memory]| [namespace, pod, cpu, memory]))
        }
        (false, true) => {
            align(&columns(rows, |[_, pod, container, cpu, memory]| [pod, container, cpu, memory]))
        }
        (false, false) => align(&columns(rows, |[_, pod, _, cpu, memory]| [pod, cpu, memory])),
    }
}

fn columns<const N: usize>(rows: Vec<[String; 5]>, pick: fn([String; 5]) -> [String; N]) -> Vec<[String; N]> {
    rows.into_iter().map(pick).collect()
}

fn figures(usage: Usage) -> [String; 2] {
    [format!("{}m", usage.cpu_millicores), format!("{}Mi", usage.memory_bytes / MEBI)]
}

/// A text in place of what a terminal shows, cut to its size.
pub fn screen(text: &str, rows: u16, columns: u16) -> String {
    const CLEAR: &str = "\x1b[H\x1b[2J";
    let mut out = CLEAR.to_owned();
    // The last row is the cursor's: a line break there would scroll.
    for line in text.lines().take(usize::from(rows.max(2)) - 1) {
        out.extend(line.chars().take(usize::from(columns.max(1))));
        out.push('\n');
    }
    out
}
