#!/usr/bin/env python3
"""Drives a full-screen program in a pty, as its user would: reads steps from standard input and fails at the first that is not met.

    see TEXT      waits until the screen has the text
    gone TEXT     waits until it has not
    keys TEXT     types; \\r, \\t, \\e and \\x04 are what Python makes of them
    ends          waits until the program ends

Usage: terminal.py SECONDS COMMAND...
"""
import codecs
import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time

ROWS, COLUMNS = 50, 180
# A control sequence; a charset; a title; a single-character function.
SEQUENCE = re.compile(r"\x1b(?:\[([0-9;?>=]*)[ -/]*([@-~])|[()].|\][^\x07\x1b]*(?:\x07|\x1b\\)|[=>78cDEHMNOZ])")


class Screen:
    """The part of a VT100 that full-screen programs use."""

    def __init__(self):
        self.cells = [[" "] * COLUMNS for _ in range(ROWS)]
        self.row = self.column = 0
        self.rest = ""

    def text(self):
        return "\n".join("".join(row).rstrip() for row in self.cells)

    def feed(self, data):
        data, at = self.rest + data, 0
        self.rest = ""
        while at < len(data):
            if data[at] == "\x1b":
                found = SEQUENCE.match(data, at)
                if not found:
                    # The rest of it comes with the next read.
                    self.rest = data[at:]
                    return
                if found.group(2):
                    self.control(found.group(1), found.group(2))
                at = found.end()
                continue
            self.put(data[at])
            at += 1

    def put(self, character):
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.row = min(self.row + 1, ROWS - 1)
        elif character == "\b":
            self.column = max(self.column - 1, 0)
        elif character >= " ":
            if self.column < COLUMNS:
                self.cells[self.row][self.column] = character
            self.column += 1

    def control(self, parameters, verb):
        numbers = [int(p) for p in re.findall(r"\d+", parameters)]
        first = numbers[0] if numbers else 1
        if verb in "Hf":
            self.row = min(first, ROWS) - 1
            self.column = min(numbers[1] if len(numbers) > 1 else 1, COLUMNS) - 1
        elif verb == "J" and not parameters.startswith("?"):
            begin = 0 if numbers and numbers[0] >= 2 else self.row
            for row in range(begin, ROWS):
                self.cells[row] = [" "] * COLUMNS
        elif verb == "K":
            self.cells[self.row][self.column:] = [" "] * (COLUMNS - self.column)
        elif verb == "C":
            self.column += first
        elif verb == "D":
            self.column = max(self.column - first, 0)
        elif verb == "A":
            self.row = max(self.row - first, 0)
        elif verb == "B":
            self.row = min(self.row + first, ROWS - 1)
        elif verb == "G":
            self.column = first - 1
        elif verb == "d":
            self.row = min(first, ROWS) - 1


class Terminal:
    def __init__(self, command, seconds):
        self.seconds, self.screen, self.ended = seconds, Screen(), False
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.process, self.file = pty.fork()
        if self.process == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execvp(command[0], command)
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

    def read(self, seconds):
        if self.ended or not select.select([self.file], [], [], seconds)[0]:
            return
        try:
            data = os.read(self.file, 65536)
        except OSError:
            data = b""
        if not data:
            self.ended = True
            return
        text = self.decoder.decode(data)
        # Programs ask where the cursor is, and what the terminal is.
        if "\x1b[6n" in text:
            os.write(self.file, b"\x1b[1;1R")
        if "\x1b[c" in text:
            os.write(self.file, b"\x1b[?62;22c")
        self.screen.feed(text)

    def until(self, condition):
        end = time.monotonic() + self.seconds
        while not condition():
            if time.monotonic() > end or (self.ended and not condition()):
                return False
            self.read(0.1)
        return True

    def step(self, line):
        verb, _, text = line.partition(" ")
        if verb == "keys":
            os.write(self.file, text.encode().decode("unicode_escape").encode("latin-1"))
            return True
        if verb == "see":
            return self.until(lambda: text in self.screen.text())
        if verb == "gone":
            return self.until(lambda: text not in self.screen.text())
        return self.until(lambda: self.ended)


def main():
    terminal = Terminal(sys.argv[2:], float(sys.argv[1]))
    try:
        for line in sys.stdin.read().splitlines():
            line = line.strip().replace("\\e", "\\x1b")
            if line and not terminal.step(line):
                shown = (row for row in terminal.screen.text().splitlines() if row.strip(" │"))
                print("\n".join(shown), f"not met: {line}", sep="\n")
                return 1
        return 0
    finally:
        if not terminal.ended:
            os.kill(terminal.process, 15)
        os.close(terminal.file)
        os.waitpid(terminal.process, 0)


if __name__ == "__main__":
    sys.exit(main())
