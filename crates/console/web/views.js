// The views by the first part of the address.
import { ProblemsView } from "./views/problems.js";
import { KindView } from "./views/kind.js";
import { ObjectView } from "./views/object.js";
import { TimelineView } from "./views/timeline.js";
import { ChangesView } from "./views/changes.js";
import { GraphView } from "./views/graph.js";
import { LogsView } from "./views/logs.js";
import { MetricsView } from "./views/metrics.js";
import { AccessView } from "./views/access.js";
import { CreateView } from "./views/create.js";

export const views = {
  problems: ProblemsView,
  k: KindView,
  o: ObjectView,
  timeline: TimelineView,
  changes: ChangesView,
  graph: GraphView,
  logs: LogsView,
  metrics: MetricsView,
  access: AccessView,
  new: CreateView,
};
