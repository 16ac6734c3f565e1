"""Counts the runs of a report of `kaji test`, and holds those that failed against the list of known findings.

    findings.py NAME report.json known-findings.txt

Exits with 1 when a run failed that the list does not explain, or a law does not hold without faults.
"""

import json
import re
import sys

name, report, known = sys.argv[1:]
with open(report, encoding="utf-8") as file:
    report = json.load(file)


def findings():
    with open(known, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip() or line.startswith("#"):
                continue
            fields = [field.strip() for field in line.split(" | ")]
            if len(fields) != 4:
                sys.exit(f"{known}:{number}: not four fields")
            if fields[0] == name:
                yield re.compile(fields[1]), re.compile(fields[2]), fields[3]


def fault(one):
    at = one["at"]
    return f"{one['kind']} at {at['verb']} {at['nth']} of {at['resource']} by {at['client']}"


listed = list(findings())
counts = {"passed": 0, "known": 0, "failed": 0, "not reached": 0}
reasons = {}
for law in report["withoutFaults"]["violations"]:
    counts["failed"] += 1
    print(f"FAIL {name}: without faults, {law['law']}: {law['text']}")
for run in report["runs"]:
    what = " and ".join(map(fault, run["faults"]))
    if not run["violations"]:
        counts["passed" if run["reached"] else "not reached"] += 1
        continue
    texts = [f"{one['law']}: {one['text']}" for one in run["violations"]]
    # What a report leaves out for its length.
    texts = [text for text in texts if not re.search(r": and [0-9]+ more$", text)]
    # All that was found has to be explained, by findings of this fault.
    of_fault = [(text, reason) for where, text, reason in listed if where.search(what)]
    explained = [next((reason for text, reason in of_fault if text.search(found)), None) for found in texts]
    seen = f"in {run['seenInRuns']} of 2 runs"
    if None in explained:
        counts["failed"] += 1
        print(f"FAIL {name}: {what} ({seen})")
        for text in texts:
            print(f"    {text[:300]}")
    else:
        counts["known"] += 1
        for reason in explained:
            reasons.setdefault(reason, set()).add(f"{what} ({seen})")
for reason, where in sorted(reasons.items()):
    print(f"known {name}: {reason}")
    for what in sorted(where):
        print(f"    {what}")
points = report["withoutFaults"]["points"]
print(
    f"{name}: {sum(point['count'] for point in points)} points of {len(points)} kinds, "
    f"{len(report['runs']) + report['leftOut']} faults within the bounds, {len(report['runs'])} of them run: "
    + ", ".join(f"{count} {what}" for what, count in counts.items())
)
sys.exit(1 if counts["failed"] else 0)
