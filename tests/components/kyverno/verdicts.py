"""Reads a report of Chainsaw: a line for each of its tests, with `ok`, `skip` or `fail`, its path, and the error of the first
operation that failed, its lines joined by a written \\n."""
import json
import os
import sys

report, folder = sys.argv[1:]
with open(report) as file:
    tests = json.load(file).get("tests") or []
if not tests:
    sys.exit("no tests")
for test in tests:
    name = os.path.normpath(os.path.join(folder, test.get("basePath", test["name"])))
    failures = [
        (step.get("name", ""), operation)
        for step in test.get("steps") or []
        for operation in step.get("operations") or []
        if operation.get("failure")
    ]
    if test.get("skipped"):
        print("skip", name, "", sep="\t")
    elif failures:
        step, operation = failures[0]
        lines = operation["failure"].get("error", "").splitlines()[:12]
        why = "\\n".join([f"{step}: {operation.get('type')}"] + [line.replace("\\", "\\\\")[:300] for line in lines])
        print("fail", name, why.replace("\t", " "), sep="\t")
    elif not any(step.get("operations") for step in test.get("steps") or []):
        print("fail", name, "no operation was run", sep="\t")
    else:
        print("ok", name, "", sep="\t")
