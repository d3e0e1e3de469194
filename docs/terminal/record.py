"""Makes terminal.svg, the picture in the README, from a real run in a clone of this repository.

    pip install rich
    cargo build --release
    python docs/terminal/record.py target/release/sandbox docs/terminal/terminal.svg
"""

import os
import pty
import re
import subprocess
import sys
import tempfile

from rich.console import Console
from rich.text import Text

COLUMNS = 92
SESSION = [
    "sandbox run -- sh -c 'rm -rf ./* .[!.]*'",
    "ls -A",
    "sandbox undo",
    "git status --short; ls -A | wc -l",
    "sandbox run -- sed -i 's/MIT/GPL/' deny.toml",
    "sandbox show",
    "sandbox undo && sandbox history",
]


def run(line, folder, environment):
    """What it prints on a terminal, colours and all."""
    main, terminal = pty.openpty()
    shell = subprocess.Popen(
        ["sh", "-c", f"stty cols {COLUMNS}; {line}"],
        cwd=folder, env=environment, stdin=terminal, stdout=terminal, stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    said = b""
    while True:
        try:
            more = os.read(main, 4096)
        except OSError:  # the terminal is closed
            break
        if not more:
            break
        said += more
    shell.wait()
    return said.decode().replace("\r\n", "\n").rstrip("\n")


def main(program, picture):
    program = os.path.abspath(program)
    here = os.path.dirname(os.path.abspath(__file__))
    with tempfile.TemporaryDirectory() as scratch:
        home, folder = os.path.join(scratch, "home"), os.path.join(scratch, "project")
        os.mkdir(home)
        subprocess.run(["git", "clone", "--quiet", os.path.join(here, "../.."), folder], check=True)
        environment = {
            "HOME": home,
            "TERM": "xterm-256color",
            "PATH": os.path.dirname(program) + ":" + os.environ["PATH"],
            "LANG": "C.UTF-8",
        }
        console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))
        for line in SESSION:
            console.print(Text("$ ", style="bold green") + Text(line, style="bold"))
            said = run(line, folder, environment)
            if said:
                console.print(Text.from_ansi(said))
        svg = console.export_svg(title="~/project")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)  # nothing is fetched from anywhere
    with open(picture, "w") as file:
        file.write(svg)


main(*sys.argv[1:])
