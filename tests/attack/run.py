#!/usr/bin/env python3
"""Runs every attack against one server and prints a line each, then the counts."""

import argparse
import glob
import importlib
import os
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from server import Server  # noqa: E402


def attacks(pattern):
    for path in sorted(glob.glob(os.path.join(HERE, "attack_*.py"))):
        module = importlib.import_module(os.path.basename(path)[:-3])
        for name, function in list(vars(module).items()):
            if name.startswith("attack_") and callable(function) and pattern in f"{module.__name__}.{name}":
                yield function


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kaji", default=os.path.join(HERE, "../../target/release/kaji"))
    parser.add_argument("--memory", type=int, default=1024, help="MiB that the server may map")
    parser.add_argument("--peak", type=float, default=400, help="MiB that it may have resident at once")
    parser.add_argument("-k", default="", help="only attacks whose name contains this")
    options = parser.parse_args()
    binary = os.path.abspath(options.kaji)
    server, passed, failed, highest = Server(binary, options.memory), 0, 0, 0.0
    for attack in attacks(options.k):
        started = time.monotonic()
        try:
            server.forget_peak()
            attack(server)
            assert server.process.poll() is None, f"the server ended: {server.tail()}"
            live = server.admin.get("/livez")
            assert live.code == 200, f"livez: {live}"
            peak = server.peak()
            highest = max(highest, peak)
            assert peak < options.peak, f"{peak:.0f} MiB resident"
            passed += 1
            print(f"ok    {attack.__name__[7:]} ({time.monotonic() - started:.1f} s, peak {peak:.0f} MiB)", flush=True)
        except Exception:
            failed += 1
            print(f"FAIL  {attack.__name__[7:]}: {(attack.__doc__ or '').strip()}", flush=True)
            for line in traceback.format_exc().strip().splitlines()[-8:]:
                print(f"      | {line[:500]}", flush=True)
            if server.process.poll() is not None:
                server.stop()
                server = Server(binary, options.memory)
    server.stop()
    print(f"attacks: highest resident memory {highest:.0f} MiB")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
